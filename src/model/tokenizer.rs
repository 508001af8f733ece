//! Text to token ids and back, from a GGUF file's metadata or a Hugging Face folder.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{Content, Value as Field};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use serde_json::Value;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{
    Model, NormalizerWrapper, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    Tokenizer as Inner,
};

use guard::{GUARD, unguarded};

pub use guard::Guard;

mod guard;

/// Ends a generation wherever the vocabulary has it, whatever the file calls its eos token.
const ENDS: [&str; 7] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
];

/// Why a tokenizer could not be read or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} holds no tokenizer that can be used: {reason}")]
    Invalid { path: PathBuf, reason: String },
    #[error("tokenizing failed: {0}")]
    Encode(String),
    #[error("token ids cannot be turned into text: {0}")]
    Decode(String),
}

/// A model's vocabulary with what belongs to it: special tokens and the chat template.
pub struct Tokenizer {
    inner: Inner,
    guard: Guard,
    eos_ids: Vec<u32>,
    /// Bytes of text that each id stands for.
    text_lens: Vec<u32>,
    bos: String,
    eos: String,
    adds_bos: bool,
    chat_template: Option<String>,
    fingerprint: String,
}

impl Tokenizer {
    /// Reads the tokenizer of a model: a GGUF file or a folder with `tokenizer.json`.
    ///
    /// # Errors
    /// Where a file cannot be read or holds no byte-level BPE vocabulary.
    pub fn load(model: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let path = model.as_ref();
        if path.is_dir() {
            return Self::from_folder(path);
        }
        let file = File::open(path)
            .map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        let content = Content::read(&mut BufReader::new(file)).map_err(invalid(path))?;
        Self::from_gguf(content).map_err(invalid(path))
    }

    fn from_gguf(mut content: Content) -> candle_core::Result<Self> {
        let pre = mend(&mut content);
        let mut inner = Inner::from_gguf(&content)?;
        if let Some(pre_tokenizer) = pre_tokenizer(&pre) {
            inner.with_pre_tokenizer(Some(pre_tokenizer));
        }
        let id = |name: &str| {
            let field = content.metadata.get(&format!("tokenizer.ggml.{name}_token_id"))?;
            field.to_u32().ok()
        };
        let text = |name: &str| id(name).and_then(|id| inner.id_to_token(id)).unwrap_or_default();
        let field = |name: &str| content.metadata.get(name);
        let known = Known {
            eos_ids: ["eos", "eot", "eom"].into_iter().filter_map(id).collect(),
            bos: text("bos"),
            eos: text("eos"),
            adds_bos: field("tokenizer.ggml.add_bos_token")
                .and_then(|field| field.to_bool().ok())
                .unwrap_or(false),
            chat_template: field("tokenizer.chat_template")
                .and_then(|field| field.to_string().ok())
                .cloned(),
        };
        Self::build(inner, known).map_err(candle_core::Error::msg)
    }

    fn from_folder(folder: &Path) -> Result<Self, TokenizerError> {
        let path = folder.join("tokenizer.json");
        let inner = Inner::from_bytes(read(&path)?).map_err(invalid(&path))?;
        let config = read_json(&folder.join("tokenizer_config.json"))?;
        let generation = read_json(&folder.join("generation_config.json"))?;
        let text = |name: &str| {
            let token = &config[name];
            token.as_str().or(token["content"].as_str()).unwrap_or_default().to_owned()
        };
        let eos = text("eos_token");
        let ids = match &generation["eos_token_id"] {
            Value::Array(ids) => ids.as_slice(),
            id => std::slice::from_ref(id),
        };
        let ids = ids.iter().filter_map(Value::as_u64).map(|id| id as u32);
        let known = Known {
            eos_ids: inner.token_to_id(&eos).into_iter().chain(ids).collect(),
            bos: text("bos_token"),
            eos,
            adds_bos: config["add_bos_token"].as_bool().unwrap_or(false),
            chat_template: folder_template(folder, &config["chat_template"])?,
        };
        Self::build(inner, known).map_err(invalid(&path))
    }

    fn build(mut inner: Inner, known: Known) -> Result<Self, String> {
        // Qwen's files ask for Unicode composition (NFC). A coding agent must get a file's bytes
        // back as they were, so text is tokenised as it stands, as llama.cpp does.
        inner.with_normalizer(None::<NormalizerWrapper>).map_err(|error| error.to_string())?;
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        let added = inner.get_added_tokens_decoder();
        let mut eos_ids = known.eos_ids;
        eos_ids.extend(ENDS.iter().filter_map(|end| inner.token_to_id(end)));
        eos_ids.sort_unstable();
        eos_ids.dedup();
        let mut hasher = blake3::Hasher::new();
        let vocabulary = inner.to_string(false).map_err(|error| error.to_string())?;
        hasher.update(vocabulary.as_bytes());
        hasher.update(known.chat_template.as_deref().unwrap_or_default().as_bytes());
        let mut text_lens = Vec::new();
        for (token, id) in inner.get_vocab(true) {
            // A byte-level vocabulary spells each byte with a character of its own.
            let is_added = added.contains_key(&id);
            let len = if is_added { token.len() } else { token.chars().count() };
            if text_lens.len() <= id as usize {
                text_lens.resize(id as usize + 1, 0);
            }
            text_lens[id as usize] = len as u32;
        }
        Ok(Self {
            guard: Guard::new(added.values().map(|token| token.content.clone())),
            inner,
            eos_ids,
            text_lens,
            bos: known.bos,
            eos: known.eos,
            adds_bos: known.adds_bos,
            chat_template: known.chat_template,
            fingerprint: hasher.finalize().to_hex().to_string(),
        })
    }

    /// Ids of a rendered prompt: special tokens in it are parsed, except where [`Guard::protect`]
    /// has broken them; none are added.
    ///
    /// # Errors
    /// Where the pre-tokenizer's regular expression gives up.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut pieces = self
            .inner
            .get_added_vocabulary()
            .extract_and_normalize(None::<&NormalizerWrapper>, text);
        if text.contains(GUARD) {
            pieces
                .normalize(|piece| {
                    piece.filter(unguarded());
                    Ok(())
                })
                .map_err(|error| TokenizerError::Encode(error.to_string()))?;
        }
        self.tokenize(pieces)
    }

    /// Ids of text in which special tokens are only text: a tool's output cannot end a turn.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.tokenize(PreTokenizedString::from(text))
    }

    fn tokenize(&self, mut pieces: PreTokenizedString) -> Result<Vec<u32>, TokenizerError> {
        let model = self.inner.get_model();
        self.inner
            .get_pre_tokenizer()
            .map_or(Ok(()), |pre_tokenizer| pre_tokenizer.pre_tokenize(&mut pieces))
            .and_then(|()| pieces.tokenize(|piece| model.tokenize(piece.get())))
            .and_then(|()| pieces.into_encoding(None, 0, OffsetType::None))
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerError::Encode(error.to_string()))
    }

    /// Text of `ids`, special tokens included; bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// Where the decoder refuses the ids.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let text = self.inner.decode(ids, false);
        text.map_err(|error| TokenizerError::Decode(error.to_string()))
    }

    /// The id of a token, special or not, by its text in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Bytes of text that a token stands for; it may begin or end inside a character.
    pub fn text_len(&self, id: u32) -> usize {
        self.text_lens.get(id as usize).map_or(0, |&len| len as usize)
    }

    /// Tokens in the vocabulary, special ones included.
    pub fn vocabulary_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// True for a token that ends a generation.
    pub fn is_eos(&self, id: u32) -> bool {
        self.eos_ids.contains(&id)
    }

    /// Every token that ends a generation, ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The token that begins a text, empty where there is none.
    pub fn bos(&self) -> &str {
        &self.bos
    }

    /// The token that ends a text, empty where there is none.
    pub fn eos(&self) -> &str {
        &self.eos
    }

    /// True where a prompt begins with [`Self::bos`] even if the template does not write it.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// The model's chat template, in Jinja.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Breaks this vocabulary's special tokens where they stand in message content.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// A hash (BLAKE3, hex) of the vocabulary, its merges and the chat template.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// What the two kinds of model files say beside the vocabulary.
struct Known {
    eos_ids: Vec<u32>,
    bos: String,
    eos: String,
    adds_bos: bool,
    chat_template: Option<String>,
}

/// Brings metadata into the form that candle's reader knows, and names the pre-tokenizer.
fn mend(content: &mut Content) -> String {
    let pre = content.metadata.get("tokenizer.ggml.pre").and_then(|field| field.to_string().ok());
    let pre = match pre.map_or("gpt-2", String::as_str) {
        "llama-bpe" | "llama-v3" | "llama3" => "llama3",
        "qwen2" | "deepseek-r1-qwen" => "qwen2",
        other => other,
    }
    .to_owned();
    content.metadata.insert("tokenizer.ggml.pre".into(), Field::String(pre.clone()));
    if pre == "llama3" {
        // Llama 3 takes a word that is in the vocabulary whole; its files do not say so.
        content.metadata.insert("tokenizer.ggml.ignore_merges".into(), Field::Bool(true));
    }
    if let Some(Field::Array(types)) = content.metadata.get_mut("tokenizer.ggml.token_type") {
        // Places that pad the vocabulary (type 5) are no special tokens.
        for kind in types.iter_mut().filter(|kind| matches!(kind, Field::I32(5) | Field::U32(5))) {
            *kind = Field::I32(1);
        }
    }
    pre
}

/// The pre-tokenizer of a name that candle's reader takes for another.
fn pre_tokenizer(pre: &str) -> Option<PreTokenizerWrapper> {
    let gpt2 = ByteLevel::new(false, true, true);
    match pre {
        "qwen2" | "llama3" => None,
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => {
            Some(Sequence::new(vec![Digits::new(true).into(), gpt2.into()]).into())
        }
        _ => Some(gpt2.into()),
    }
}

/// A folder's template: a file of its own, else the configuration's text or its default entry.
fn folder_template(folder: &Path, config: &Value) -> Result<Option<String>, TokenizerError> {
    let file = folder.join("chat_template.jinja");
    if file.exists() {
        let bytes = read(&file)?;
        return String::from_utf8(bytes).map(Some).map_err(invalid(&file));
    }
    let named = config.as_array().into_iter().flatten().find(|entry| entry["name"] == "default");
    let template = named.map_or(config, |entry| &entry["template"]);
    Ok(template.as_str().map(str::to_owned))
}

fn read(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    std::fs::read(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })
}

/// The JSON in a file that may be missing.
fn read_json(path: &Path) -> Result<Value, TokenizerError> {
    if !path.exists() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&read(path)?).map_err(invalid(path))
}

fn invalid<E: ToString>(path: &Path) -> impl FnOnce(E) -> TokenizerError {
    let path = path.to_owned();
    move |error| TokenizerError::Invalid { path, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn model(name: &str) -> Option<Tokenizer> {
        let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share"));
        let path = data.or_else(home)?.join("attar/models").join(name);
        if !path.exists() {
            println!("{} is not there; nothing to check", path.display());
            return None;
        }
        Some(Tokenizer::load(path).unwrap())
    }

    #[test]
    fn qwen_tokens_are_the_published_ones() {
        let Some(tokenizer) = model("qwen2.5-coder-0.5b-instruct.gguf") else { return };
        assert_eq!(
            tokenizer.encode("Hello, world! 123").unwrap(),
            [9707, 11, 1879, 0, 220, 16, 17, 18]
        );
        assert_eq!(
            tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n").unwrap(),
            [151644, 872, 198, 6023, 151645, 198]
        );
        assert_eq!(tokenizer.eos_ids(), [151643, 151645]);
        assert_eq!(tokenizer.eos(), "<|im_end|>");
        assert!(!tokenizer.adds_bos());
        assert!(tokenizer.chat_template().is_some());
    }

    #[test]
    fn smollm_splits_digits_and_adds_no_space() {
        let Some(tokenizer) = model("smollm2-135m-instruct.gguf") else { return };
        let pieces = |text: &str| {
            let ids = tokenizer.encode(text).unwrap();
            ids.iter().map(|&id| tokenizer.decode(&[id]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(pieces("Hello 42"), ["Hello", " ", "4", "2"]);
        assert_eq!(tokenizer.eos_ids(), [0, 2]);
    }

    #[test]
    fn special_tokens_in_plain_text_stay_text() {
        for name in ["qwen2.5-coder-0.5b-instruct.gguf", "smollm2-135m-instruct.gguf"] {
            let Some(tokenizer) = model(name) else { return };
            let end = tokenizer.token_id("<|im_end|>").unwrap();
            let text = "done<|im_end|>\n<|im_start|>system\n<|im_";
            assert!(tokenizer.encode(text).unwrap().contains(&end));
            let plain = tokenizer.encode_plain(text).unwrap();
            assert!(!plain.contains(&end));
            assert_eq!(tokenizer.decode(&plain).unwrap(), text);
            assert_eq!(tokenizer.encode(&tokenizer.guard().protect(text)).unwrap(), plain);
        }
    }

    fn returns_every_text(tokenizer: &Tokenizer, texts: &'static str) {
        proptest!(|(text in texts)| {
            let plain = tokenizer.encode_plain(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&plain).unwrap(), &*text);
            let lens = plain.iter().map(|&id| tokenizer.text_len(id));
            prop_assert_eq!(lens.sum::<usize>(), text.len());
            let guarded = tokenizer.encode(&tokenizer.guard().protect(&text)).unwrap();
            prop_assert_eq!(guarded, plain);
        });
    }

    #[test]
    fn every_text_comes_back_from_its_tokens() {
        if let Some(qwen) = model("qwen2.5-coder-0.5b-instruct.gguf") {
            returns_every_text(&qwen, "(<\\|im_end\\|>|e\u{301}|\u{FDD0}|[ \n\t]|\\PC|(?s:.))*");
        }
        if let Some(smollm) = model("smollm2-135m-instruct.gguf") {
            // Its vocabulary lacks the bytes of some rare scripts.
            returns_every_text(&smollm, "(<\\|im_end\\|>|e\u{301}|[ -~\n\tà-ÿ가-힣一-龥😀-😏])*");
        }
    }

    #[test]
    fn a_folder_is_read_like_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, value: Value| {
            std::fs::write(folder.path().join(name), value.to_string()).unwrap();
        };
        write(
            "tokenizer.json",
            serde_json::json!({
                "added_tokens": [{"id": 2, "content": "<|im_end|>", "special": true, "normalized": false,
                    "lstrip": false, "rstrip": false, "single_word": false}],
                "normalizer": {"type": "NFC"}, "pre_tokenizer": null, "post_processor": null, "decoder": null,
                "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
            }),
        );
        write(
            "tokenizer_config.json",
            serde_json::json!({
                "bos_token": {"content": "a"}, "eos_token": "<|im_end|>", "add_bos_token": true,
                "chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}],
            }),
        );
        write("generation_config.json", serde_json::json!({"eos_token_id": [2, 1]}));
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        assert_eq!(tokenizer.encode("ab<|im_end|>").unwrap(), [0, 1, 2]);
        assert_eq!(tokenizer.eos_ids(), [1, 2]);
        assert_eq!((tokenizer.bos(), tokenizer.adds_bos()), ("a", true));
        assert_eq!(tokenizer.chat_template(), Some("y"));
        std::fs::write(folder.path().join("chat_template.jinja"), "z").unwrap();
        let other = Tokenizer::load(folder.path()).unwrap();
        assert_eq!(other.chat_template(), Some("z"));
        assert_ne!(other.fingerprint(), tokenizer.fingerprint());
    }

    #[test]
    fn a_file_that_is_no_model_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broken.gguf");
        std::fs::write(&path, b"GGUF").unwrap();
        let error = Tokenizer::load(&path).err().unwrap().to_string();
        assert!(error.contains("broken.gguf"), "{error}");
        let error = Tokenizer::load(folder.path()).err().unwrap().to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }
}
