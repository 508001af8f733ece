//! Rules about the source itself.

use std::fs;
use std::path::{Path, PathBuf};

/// Modules from the wire down: each may name itself, what stands behind it, and `trajectory`.
const LAYERS: &[&str] =
    &["wire", "session", "ingest", "engine", "model", "cache", "kernel", "store"];

/// Arrows that go against the order, each with its reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    // Attention reads a cache's slots where they lie.
    ("kernel", "cache"),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn imports_point_one_way() {
    for (above, layer) in LAYERS.iter().enumerate() {
        for path in sources(&root().join("src").join(layer)) {
            let text = fs::read_to_string(&path).unwrap();
            for forbidden in &LAYERS[..above] {
                if EXCEPTIONS.contains(&(layer, forbidden)) {
                    continue;
                }
                let import = format!("crate::{forbidden}");
                let path = path.display();
                assert!(!text.contains(&import), "{path} names {import}, which is above it");
            }
        }
    }
}

#[test]
fn trajectory_names_nobody() {
    for path in sources(&root().join("src/trajectory")) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("crate::"), "{} names another module", path.display());
    }
}

#[test]
fn every_chapter_is_in_the_table_of_contents() {
    let contents = fs::read_to_string(root().join("tests/it/main.rs")).unwrap();
    for path in sources(&root().join("tests/it")) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let is_part = path.parent().unwrap() != root().join("tests/it");
        let is_listed = name == "main" || contents.contains(&format!("mod {name};"));
        assert!(is_part || is_listed, "{} is never compiled", path.display());
    }
}

#[test]
fn only_the_kernels_are_unsafe() {
    for path in sources(&root().join("src")) {
        let text = fs::read_to_string(&path).unwrap();
        let is_kernel = path.starts_with(root().join("src/kernel"));
        let is_unsafe = text.contains("unsafe {") || text.contains("unsafe fn");
        assert!(is_kernel || !is_unsafe, "{} has unsafe code", path.display());
    }
}

#[test]
fn no_file_has_grown_out_of_hand() {
    for path in sources(&root().join("src")) {
        let n_lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(n_lines <= 700, "{} has {n_lines} lines: is it still one thing?", path.display());
    }
}
