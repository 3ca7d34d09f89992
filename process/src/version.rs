/// Version and commit, e.g. `0.1.0 (commit 1a2b3c4d5e, 2026-11-30)`; made for clap: `#[command(version = VERSION)]`.
///
/// A debug build says `commit … or later, …, debug build`; a build without git and without `TAILNET_COMMIT` says `commit unknown`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("TAILNET_VERSION_COMMIT"), ")");

/// [`VERSION`] as a function.
pub fn version() -> &'static str {
    VERSION
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn version_has_number_and_commit() {
        let text = version();
        assert!(
            text.starts_with(concat!(env!("CARGO_PKG_VERSION"), " (commit ")),
            "{text}"
        );
        assert!(text.ends_with(')'), "{text}");
    }
}
