//! Getting a file over HTTP, as the Hugging Face hub serves it.

use ureq::http::{Response, StatusCode, Uri, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::SourceError;
use super::part::{CopyError, Expected, Part};
use super::progress::Progress;
use super::pull::PullOptions;

/// Attempts in a row that may bring no byte before the source is given up.
const MAX_BARREN: u32 = 3;

/// Fetches `url` into `part`, taking up where it ends; tells what the whole file must be.
///
/// # Errors
/// Whatever is wrong with this source, so that the next one may be tried.
pub(super) fn fetch(
    url: &str,
    expected: Expected,
    part: &mut Part,
    options: &PullOptions,
    progress: &mut Progress,
) -> Result<Expected, SourceError> {
    let hub = Hub { url, host: host(url), agent: agent(options), token: token(url) };
    let expected = hub.announce(expected)?;
    // Without a hash nothing would show that two halves are of different versions.
    let is_foreign = expected.sha256.is_none() && part.n_bytes() > 0;
    if is_foreign || expected.n_bytes.is_some_and(|n_bytes| n_bytes < part.n_bytes()) {
        part.restart()?;
    }
    part.ensure_room(expected.n_bytes.unwrap_or(0))?;
    progress.bytes(part.n_bytes(), expected.n_bytes);
    let mut n_barren = 0;
    while expected.n_bytes != Some(part.n_bytes()) {
        let before = part.n_bytes();
        let reason = match hub.stream(part, progress)? {
            None if expected.n_bytes.is_none() => break,
            None => "it ended early".to_owned(),
            Some(reason) => reason,
        };
        if expected.n_bytes.is_some_and(|n_bytes| n_bytes <= part.n_bytes()) {
            break;
        }
        n_barren = if part.n_bytes() > before { 0 } else { n_barren + 1 };
        if n_barren == MAX_BARREN {
            return Err(SourceError::Cut { host: hub.host, at: part.n_bytes(), reason });
        }
        progress.note(&format!("{reason}; resuming at {} bytes", part.n_bytes()));
        std::thread::sleep(options.retry_wait * n_barren);
    }
    Ok(expected)
}

struct Hub<'a> {
    url: &'a str,
    host: String,
    agent: Agent,
    token: Option<String>,
}

impl Hub<'_> {
    /// Asks what the file is, and so whether the hub is there, before anything is fetched.
    ///
    /// The hub redirects to its storage and declares size and SHA-256 in the redirect itself, in
    /// `X-Linked-Size` and `X-Linked-Etag`: it is not followed here.
    fn announce(&self, expected: Expected) -> Result<Expected, SourceError> {
        let mut request = self.agent.head(self.url).config().max_redirects(0).build();
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let response = request.call().map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if !status.is_success() && !status.is_redirection() {
            return Err(self.status(status));
        }
        let text = |name: &str| response.headers().get(name)?.to_str().ok();
        let linked = text("x-linked-size").and_then(|size| size.parse().ok());
        let length = text("content-length").and_then(|size| size.parse().ok());
        let n_bytes = linked.or(length.filter(|_| status.is_success()));
        let is_hash = |etag: &&str| etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit());
        let sha256 = text("x-linked-etag").map(|etag| etag.trim_matches('"')).filter(is_hash);
        let other = |what, expected: &dyn ToString, found: &dyn ToString| {
            let (expected, found) = (expected.to_string(), found.to_string());
            Err(SourceError::OtherFile { origin: self.host.clone(), what, expected, found })
        };
        if let (Some(expected), Some(found)) = (expected.n_bytes, n_bytes)
            && expected != found
        {
            return other("size", &expected, &found);
        }
        if let (Some(expected), Some(found)) = (&expected.sha256, sha256)
            && expected != found
        {
            return other("SHA-256", expected, &found);
        }
        Ok(Expected {
            n_bytes: expected.n_bytes.or(n_bytes),
            sha256: expected.sha256.or(sha256.map(str::to_owned)),
        })
    }

    /// Appends to `part` until the body ends; tells why where that was not its end.
    fn stream(
        &self,
        part: &mut Part,
        progress: &mut Progress,
    ) -> Result<Option<String>, SourceError> {
        let mut request = self.agent.get(self.url);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        if part.n_bytes() > 0 {
            request = request.header(header::RANGE, format!("bytes={}-", part.n_bytes()));
        }
        let response = match request.call() {
            Ok(response) => response,
            Err(error) => return Ok(Some(error.to_string())),
        };
        match response.status() {
            StatusCode::PARTIAL_CONTENT if range_start(&response) == Some(part.n_bytes()) => {}
            StatusCode::OK => part.restart()?,
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                part.restart()?;
                return Ok(Some("it does not serve the rest of the file".to_owned()));
            }
            status => return Err(self.status(status)),
        }
        match part.append(response.into_body().into_reader(), progress) {
            Ok(()) => Ok(None),
            Err(CopyError::Read(error)) => Ok(Some(error.to_string())),
            Err(CopyError::Write(error)) => Err(error.into()),
        }
    }

    fn status(&self, status: StatusCode) -> SourceError {
        SourceError::Status { url: self.url.to_owned(), status: status.as_u16() }
    }

    fn unreachable(&self, error: &ureq::Error) -> SourceError {
        SourceError::Unreachable { host: self.host.clone(), reason: error.to_string() }
    }
}

fn agent(options: &PullOptions) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        // A compressed body would have neither the file's length nor its ranges.
        .accept_encoding("identity")
        .user_agent(concat!("attar/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(options.connect_timeout))
        .timeout_connect(Some(options.connect_timeout))
        .timeout_recv_response(Some(options.stall_timeout))
        .timeout_per_read(Some(options.stall_timeout));
    let config = match extra_roots() {
        Some(roots) => config.tls_config(TlsConfig::builder().root_certs(roots).build()),
        None => config,
    };
    config.build().new_agent()
}

/// Certificates in `SSL_CERT_FILE`, for networks whose proxy has its own authority.
fn extra_roots() -> Option<RootCerts> {
    let pem = std::fs::read(std::env::var_os("SSL_CERT_FILE")?).ok()?;
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    (!certificates.is_empty()).then(|| RootCerts::new_with_certs(&certificates))
}

/// The user's hub token for private repositories, only ever sent over TLS.
fn token(url: &str) -> Option<String> {
    let token = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty())?;
    url.starts_with("https://").then(|| format!("Bearer {token}"))
}

fn host(url: &str) -> String {
    let uri = url.parse::<Uri>().ok();
    uri.as_ref().and_then(Uri::host).unwrap_or(url).to_owned()
}

/// The first byte of a partial body.
fn range_start(response: &Response<Body>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}
