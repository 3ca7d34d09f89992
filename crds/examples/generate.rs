//! Writes the CRDs and the reference pages, from the root of the repository: `cargo run -p tailnet-crds --example generate`.
//! `cargo xtask gen` does the same together with all other generated files.

use std::path::Path;

fn main() -> std::io::Result<()> {
    for (name, text) in tailnet_crds::crd_yaml() {
        write(&Path::new("crds/yaml").join(name), &text)?;
    }
    write(Path::new("docs/reference/crds.md"), &tailnet_crds::reference_md())?;
    write(
        Path::new("docs/reference/conditions.md"),
        &tailnet_crds::conditions_md(),
    )
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)?;
    println!("{} ({} bytes)", path.display(), text.len());
    Ok(())
}
