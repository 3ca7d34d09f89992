//! Workflow commands of GitHub Actions: `::error file=…,line=…,title=…::message`.

use super::output::Line;

/// The command that annotates the line of a finding.
pub fn annotation(line: &Line) -> String {
    let level = if line.severity == super::DENY {
        "error"
    } else {
        "warning"
    };
    let title = format!("{} {}", line.rule, line.object());
    format!(
        "::{level} file={},line={},title={}::{}",
        property(line.file.strip_prefix("./").unwrap_or(&line.file)),
        line.line,
        property(&title),
        data(&format!("{}: {}", line.field, line.message)),
    )
}

/// The command for what could not be read.
pub fn error(text: &str) -> String {
    format!("::error title=kubectl tailnet lint::{}", data(text))
}

/// A message: what would end the command or begin another one is written in hexadecimal.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// A property: also what would end it.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_ends_the_command() {
        let line = Line {
            file: "./a,b:c\n.yaml".to_owned(),
            line: 7,
            kind: "TailnetSite",
            namespace: None,
            name: "lab".to_owned(),
            rule: "TN401".to_owned(),
            severity: super::super::DENY,
            field: "spec.prefixes[0]".to_owned(),
            message: "100% wrong\n::error::not a command".to_owned(),
        };
        assert_eq!(
            annotation(&line),
            "::error file=a%2Cb%3Ac%0A.yaml,line=7,title=TN401 TailnetSite lab::spec.prefixes[0]: 100%25 wrong%0A::error::not a command"
        );
        assert!(!error("a\r\nb").contains('\n'));
    }
}
