//! References to container images.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use regex::Regex;

use super::format::{Format, FormatError, Spelling, without_outer_space};

/// A container image: `[registry[:port]/]path[:tag][@digest]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageRef {
    name: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl ImageRef {
    /// Registry and path, as written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tag.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, such as `sha256:…`.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// Whether the reference always means the same software: a digest, or a tag with at least `MAJOR.MINOR`.
    pub fn is_pinned(&self) -> bool {
        self.digest.is_some() || self.version().is_some()
    }

    /// The numbers of a version tag such as `v1.102.4` or `1.8.0.3-r2`; at least two.
    pub fn version(&self) -> Option<Vec<u64>> {
        let tag = self.tag.as_deref()?;
        let numbers = VERSION.captures(tag)?.get(1)?.as_str();
        numbers.split('.').map(|number| number.parse().ok()).collect()
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl Format for ImageRef {
    const NAME: &'static str = "image reference";
    const MAX_LENGTH: u32 = 512;
}

impl FromStr for ImageRef {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        without_outer_space(text, read)
    }
}

/// A version tag: at least two numbers.
pub(crate) const VERSION_PATTERN: &str = r"^v?([0-9]{1,9}(?:\.[0-9]{1,9})+)(?:[-_+.][0-9A-Za-z_.-]+)?$";

#[allow(clippy::expect_used, reason = "constant patterns, compiled in a test")]
static VERSION: LazyLock<Regex> = LazyLock::new(|| Regex::new(VERSION_PATTERN).expect("constant pattern"));

#[allow(clippy::expect_used, reason = "constant patterns, compiled in a test")]
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^((?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?",
        r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)",
        r"(?::([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?",
        r"(?:@([a-z0-9]+:[0-9a-f]{32,128}))?$",
    ))
    .expect("constant pattern")
});

fn read(text: &str) -> Result<ImageRef, FormatError> {
    if let Some(found) = REFERENCE.captures(text) {
        let part = |i| found.get(i).map(|part| part.as_str().to_owned());
        return Ok(ImageRef {
            name: part(1).unwrap_or_default(),
            tag: part(2),
            digest: part(3),
        });
    }
    // Repository names are lower case; tags are not.
    let slash = text.rfind('/').map_or(0, |at| at + 1);
    let end = text[slash..].find([':', '@']).map_or(text.len(), |at| slash + at);
    let lower = format!("{}{}", text[..end].to_ascii_lowercase(), &text[end..]);
    if lower != text && REFERENCE.is_match(&lower) {
        return Err(FormatError::not_canonical(Spelling::UpperCase, lower));
    }
    Err(FormatError::unreadable(
        "is not an image reference such as registry.example/path/name:v1.2.3",
    ))
}
