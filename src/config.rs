//! Settings: flags override `ATTAR_*` variables, which override the config file.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use crate::ingest::condense::Condense;
use crate::model::registry;
use crate::session::record::CacheOptions;

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the config file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the config file {} is not valid: {source}", path.display())]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error("`{0}` is not a size; write for example 512MiB, 8GiB or a number of bytes")]
    Size(String),
    #[error("there is no home folder for data; set XDG_DATA_HOME or pass `--data-dir`")]
    NoDataDir,
    #[error("{0}")]
    Cache(String),
    #[error("`condense`: {0}")]
    Condense(String),
    #[error("`threads` is 0; use at least 1")]
    NoThreads,
}

/// Settings as they are given; what is left out has a default.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Model by name (see `attar model list`) or path.
    #[arg(long, env = "ATTAR_MODEL", value_name = "NAME_OR_PATH")]
    pub model: Option<String>,
    /// Folder of the stored sessions.
    #[arg(long, env = "ATTAR_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Memory for all KV caches together [default: a quarter of the machine's].
    #[arg(long, env = "ATTAR_KV_MEMORY", value_name = "SIZE")]
    pub kv_memory: Option<String>,
    /// Disk space for stored caches; text always stays [default: 8GiB].
    #[arg(long, env = "ATTAR_STORE_LIMIT", value_name = "SIZE")]
    pub store_limit: Option<String>,
    /// Which slots of the cache stay, for sessions that do not say [default: rkv].
    #[arg(long, env = "ATTAR_POLICY", value_name = "NAME")]
    pub policy: Option<String>,
    /// Slots of the cache that stay, for sessions that do not say [default: 4096].
    #[arg(long, env = "ATTAR_BUDGET", value_name = "SLOTS")]
    pub budget: Option<usize>,
    /// Slots beyond the budget before a compaction [default: 128].
    #[arg(long, env = "ATTAR_BUFFER", value_name = "SLOTS")]
    pub buffer: Option<usize>,
    /// What is folded of tools' output, for sessions that do not say: `on`, `off`, or `off:` and
    /// names of rules [default: on].
    #[arg(long, env = "ATTAR_CONDENSE", value_name = "WHAT")]
    pub condense: Option<String>,
    /// Largest message that is read [default: 64MiB].
    #[arg(long, env = "ATTAR_MAX_MESSAGE", value_name = "SIZE")]
    pub max_message: Option<String>,
    /// Threads that compute [default: one a core].
    #[arg(long, env = "ATTAR_THREADS", value_name = "N")]
    pub threads: Option<usize>,
}

/// Settings that are whole and legal.
#[derive(Clone, Debug)]
pub struct Config {
    pub model: String,
    pub data_dir: PathBuf,
    /// Bytes.
    pub kv_memory: usize,
    /// Bytes.
    pub store_limit: u64,
    pub cache: CacheOptions,
    pub condense: Condense,
    /// Bytes.
    pub max_message: usize,
    pub threads: usize,
}

impl Settings {
    /// Reads a config file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|source| ConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    /// These settings, and `file`'s where these say nothing.
    #[must_use]
    pub fn over(self, file: Self) -> Self {
        Self {
            model: self.model.or(file.model),
            data_dir: self.data_dir.or(file.data_dir),
            kv_memory: self.kv_memory.or(file.kv_memory),
            store_limit: self.store_limit.or(file.store_limit),
            policy: self.policy.or(file.policy),
            budget: self.budget.or(file.budget),
            buffer: self.buffer.or(file.buffer),
            condense: self.condense.or(file.condense),
            max_message: self.max_message.or(file.max_message),
            threads: self.threads.or(file.threads),
        }
    }

    /// Fills in the defaults and checks every value.
    pub fn check(self) -> Result<Config, ConfigError> {
        let size = |text: Option<String>, default: u64| match text {
            Some(text) => parse_size(&text),
            None => Ok(default),
        };
        let cache = CacheOptions {
            policy: self.policy.unwrap_or_else(|| "rkv".to_owned()),
            budget: self.budget.unwrap_or(4_096),
            buffer: self.buffer.unwrap_or(128),
        };
        cache.validate().map_err(|e| ConfigError::Cache(e.to_string()))?;
        let condense = self.condense.map_or(Ok(Condense::default()), |text| text.parse());
        let condense = condense.map_err(ConfigError::Condense)?;
        let threads = match self.threads {
            Some(0) => return Err(ConfigError::NoThreads),
            Some(n) => n,
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        Ok(Config {
            model: self.model.unwrap_or_else(|| registry::DEFAULT_MODEL.to_owned()),
            data_dir: self.data_dir.or_else(default_data_dir).ok_or(ConfigError::NoDataDir)?,
            kv_memory: size(self.kv_memory, memory_bytes() / 4)? as usize,
            store_limit: size(self.store_limit, 8 << 30)?,
            cache,
            condense,
            max_message: size(self.max_message, 64 << 20)? as usize,
            threads,
        })
    }
}

/// `$XDG_DATA_HOME/attar/sessions`, else the same under `~/.local/share`.
fn default_data_dir() -> Option<PathBuf> {
    let home = || std::env::home_dir().map(|home| home.join(".local/share"));
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    Some(data.or_else(home)?.join("attar/sessions"))
}

/// The machine's memory in bytes; 16 GiB where it cannot be told.
pub fn memory_bytes() -> u64 {
    #[cfg(target_os = "linux")]
    {
        let info = rustix::system::sysinfo();
        info.totalram as u64 * u64::from(info.mem_unit)
    }
    #[cfg(not(target_os = "linux"))]
    {
        16 << 30
    }
}

/// A size with an optional unit (`B`, or `k`, `M`, `G`, `T`, each with `B` or `iB` or without; all are powers of 1,024).
pub fn parse_size(text: &str) -> Result<u64, ConfigError> {
    let error = || ConfigError::Size(text.to_owned());
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let shift = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(error()),
    };
    let number: f64 = number.parse().map_err(|_| error())?;
    let bytes = number * f64::from(2u32).powi(shift);
    if bytes.is_finite() && bytes >= 0.0 && bytes <= u64::MAX as f64 / 2.0 {
        Ok(bytes as u64)
    } else {
        Err(error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        let sizes = ["0", "1000", "64MiB", "8 GiB", "1.5G", "2kB"];
        let bytes = sizes.map(|size| parse_size(size).unwrap());
        assert_eq!(bytes, [0, 1_000, 64 << 20, 8 << 30, 3 << 29, 2 << 10]);
    }

    #[test]
    fn nonsense_is_no_size() {
        for text in ["", "MiB", "-1", "12 parsecs", "12i", "1bb", "1ki", "1.2.3", "1e3", "nan"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn flags_override_the_file() {
        let file: Settings = toml::from_str("budget = 512\npolicy = \"snapkv\"").unwrap();
        let flags = Settings { budget: Some(1_024), ..Settings::default() };
        let config = flags.over(file).check().unwrap();
        assert_eq!((config.cache.budget, config.cache.policy.as_str()), (1_024, "snapkv"));
    }

    #[test]
    fn an_unknown_setting_in_the_file_is_an_error() {
        assert!(toml::from_str::<Settings>("budgets = 512").is_err());
    }
}
