//! Links of our Markdown files: every relative link leads to a file that exists, every anchor to a heading in it.
//!
//! Links to other hosts are not followed: a check must not depend on somebody else's server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use walkdir::WalkDir;

/// What one page links to and can be linked at.
struct Page {
    anchors: BTreeSet<String>,
    links: Vec<String>,
}

/// Every broken link as a line of text, `file: link: reason`; and how many links were looked at.
pub fn broken(root: &Path, target: &Path) -> Result<(Vec<String>, usize)> {
    let mut pages = BTreeMap::new();
    let walk = WalkDir::new(root)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|entry| {
            let name = entry.file_name().to_string_lossy();
            entry.depth() == 0 || !(name.starts_with('.') || name == "node_modules" || entry.path() == target)
        });
    for entry in walk {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(entry.path())
                .with_context(|| format!("cannot read {}", entry.path().display()))?;
            pages.insert(entry.path().to_path_buf(), parse(&text));
        }
    }
    let mut broken = Vec::new();
    let mut looked_at = 0;
    for (path, page) in &pages {
        for link in &page.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            looked_at += 1;
            if let Some(reason) = fault(root, path, link, &pages) {
                broken.push(format!(
                    "{}: {link}: {reason}",
                    path.strip_prefix(root).unwrap_or(path).display()
                ));
            }
        }
    }
    Ok((broken, looked_at))
}

fn fault(root: &Path, from: &Path, link: &str, pages: &BTreeMap<PathBuf, Page>) -> Option<String> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = if file.is_empty() {
        from.to_path_buf()
    } else {
        match resolve(from, file) {
            Some(path) if path.starts_with(root) => path,
            _ => return Some("leads out of the repository".to_owned()),
        }
    };
    if !path.exists() {
        return Some("no such file".to_owned());
    }
    if anchor.is_empty() {
        return None;
    }
    match pages.get(&path) {
        Some(page) if page.anchors.contains(anchor) => None,
        Some(_) => Some(format!("no heading gives #{anchor}")),
        None => Some("an anchor into something that is not Markdown".to_owned()),
    }
}

/// `from`'s folder joined with a relative path, `.` and `..` worked out; `None` above the file system's root.
fn resolve(from: &Path, relative: &str) -> Option<PathBuf> {
    let mut path = from.parent()?.to_path_buf();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if !path.pop() {
                    return None;
                }
            }
            name => path.push(name),
        }
    }
    Some(path)
}

fn parse(text: &str) -> Page {
    let mut page = Page {
        anchors: BTreeSet::new(),
        links: Vec::new(),
    };
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_HEADING_ATTRIBUTES) {
        match event {
            Event::Start(Tag::Heading { id, .. }) => {
                if let Some(id) = id {
                    page.anchors.insert(id.to_string());
                }
                heading = Some(String::new());
            }
            Event::End(TagEnd::Heading(_)) => {
                if let Some(text) = heading.take() {
                    let slug = slug(&text);
                    let mut unique = slug.clone();
                    let mut number = 0;
                    while !page.anchors.insert(unique.clone()) {
                        number += 1;
                        unique = format!("{slug}-{number}");
                    }
                }
            }
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.to_string())
            }
            Event::Html(html) | Event::InlineHtml(html) => page.anchors.extend(html_ids(&html)),
            _ => {}
        }
    }
    page
}

/// The anchor that GitHub makes of a heading.
fn slug(heading: &str) -> String {
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c if c.is_alphanumeric() => Some(c),
            _ => None,
        })
        .collect()
}

/// Values of `id="…"` and `name="…"` in raw HTML.
fn html_ids(html: &str) -> Vec<String> {
    ["id=\"", "name=\""]
        .iter()
        .flat_map(|attribute| html.split(attribute).skip(1))
        .filter_map(|rest| rest.split('"').next())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{broken, slug};

    #[test]
    fn github_slugs() {
        assert_eq!(slug("TN203: address is `wrong`"), "tn203-address-is-wrong");
        assert_eq!(slug("A & B"), "a--b");
    }

    #[test]
    fn finds_what_is_broken_and_only_that() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("docs")).unwrap();
        std::fs::write(
            root.join("README.md"),
            "[ok](docs/a.md#one-two) [file](docs/b.md) [anchor](docs/a.md#three) [out](../x.md)",
        )
        .unwrap();
        std::fs::write(root.join("docs/a.md"), "# One two\n\n[up](../README.md) [self](#one-two) [web](https://example.net/x)\n\n<a id=\"mark\"></a>[m](#mark)").unwrap();
        let (lines, looked_at) = broken(root, &root.join("target")).unwrap();
        assert_eq!(
            lines,
            [
                "README.md: docs/b.md: no such file",
                "README.md: docs/a.md#three: no heading gives #three",
                "README.md: ../x.md: leads out of the repository",
            ]
        );
        assert_eq!(looked_at, 7);
    }
}
