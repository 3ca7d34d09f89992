//! HTML text that cannot be got wrong: what is not written in this program goes through an escape.

use std::fmt::Write as _;

use super::printable::printable;

/// A page that grows.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// Markup of this program.
    pub fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Anybody's text, as content or inside a quoted attribute.
    pub fn text(&mut self, text: &str) -> &mut Self {
        for letter in printable(text).chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                letter => self.0.push(letter),
            }
        }
        self
    }

    /// A count.
    pub fn count(&mut self, count: u64) -> &mut Self {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{count}");
        self
    }

    /// A length or place in a drawing.
    pub fn number(&mut self, number: f64) -> &mut Self {
        let _ = write!(self.0, "{number:.1}");
        self
    }

    /// The text.
    pub fn finish(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Page;

    #[test]
    fn strangers_write_no_markup() {
        let mut page = Page::default();
        page.raw("<td title=\"")
            .text("a\" onload='x'")
            .raw("\">")
            .text("<script>&\u{202e}")
            .raw("</td>");
        assert_eq!(
            page.finish(),
            "<td title=\"a&quot; onload=&#39;x&#39;\">&lt;script&gt;&amp;\\u{202e}</td>"
        );
    }
}
