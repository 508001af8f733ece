//! Pulling models: from a server on the loopback interface, and from wheels that a stand-in for
//! pip copies out of a folder.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use attar::model::registry::{
    Model, PullOptions, RegistryError, Source, SourceError, StorageError, Wheel, downloaded, pull,
    resolve_in,
};
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// A file that looks like a model.
fn content(n_bytes: usize) -> Vec<u8> {
    let noise = (0..n_bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8);
    b"GGUF".iter().copied().chain(noise).take(n_bytes).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn model(bytes: &[u8], sources: Vec<Source>) -> Model {
    Model {
        name: "tiny".to_owned(),
        about: String::new(),
        n_bytes: Some(bytes.len() as u64),
        sha256: Some(sha256(bytes)),
        sources,
    }
}

fn options() -> PullOptions {
    PullOptions { clients: Vec::new(), retry_wait: Duration::ZERO, ..PullOptions::default() }
}

/// What lies in a folder, but for the lock.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.ends_with(".lock")).collect()
}

#[derive(Clone, Default)]
struct Serve {
    bytes: Vec<u8>,
    /// Bytes after which the first bodies break off, one entry a body.
    cuts: Vec<usize>,
    ignores_range: bool,
    /// Declares its hash as the hub does, in `X-Linked-Etag`.
    etag: Option<String>,
    /// Answers HEAD with a redirect to another path, as the hub does.
    redirects: bool,
    missing: bool,
}

/// A file server; the requests it got are in `log`, as `GET 100` for a range from byte 100.
struct Server {
    source: Source,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(serve: Serve) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/o/r/resolve/main/f.gguf", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&log);
        std::thread::spawn(move || {
            let mut serve = serve;
            for stream in listener.incoming() {
                // A client that goes away is part of what is tested.
                let _ = serve.answer(stream.unwrap(), &seen);
            }
        });
        Self { source: Source::Http(url), log }
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

impl Serve {
    fn answer(&mut self, mut stream: TcpStream, log: &Mutex<Vec<String>>) -> std::io::Result<()> {
        let lines = BufReader::new(stream.try_clone()?).lines();
        let lines: Vec<String> =
            lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        let Some((method, path)) = lines.first().and_then(|line| line.split_once(' ')) else {
            return Ok(());
        };
        let range = lines.iter().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let start = value.strip_prefix("bytes=")?.strip_suffix('-')?;
            name.eq_ignore_ascii_case("range").then(|| start.parse::<usize>().unwrap())
        });
        log.lock().unwrap().push(range.map_or(method.to_owned(), |at| format!("{method} {at}")));
        let total = self.bytes.len();
        let mut head = String::new();
        let mut body: &[u8] = &[];
        if self.missing {
            head += "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n";
        } else if self.redirects && path.starts_with("/o/") {
            let hash = sha256(&self.bytes);
            head += "HTTP/1.1 302 Found\r\nLocation: /storage/f\r\nContent-Length: 0\r\n";
            head += &format!("X-Linked-Size: {total}\r\nX-Linked-Etag: \"{hash}\"\r\n");
        } else {
            let start = range.filter(|_| !self.ignores_range).unwrap_or(0);
            body = &self.bytes[start..];
            if start > 0 {
                head += "HTTP/1.1 206 Partial Content\r\n";
                head += &format!("Content-Range: bytes {start}-{}/{total}\r\n", total - 1);
            } else {
                head += "HTTP/1.1 200 OK\r\n";
            }
            head += &format!("Content-Length: {}\r\n", body.len());
            if let Some(etag) = &self.etag {
                head += &format!("X-Linked-Etag: \"{etag}\"\r\n");
            }
        }
        stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())?;
        if method == "GET" && !body.is_empty() {
            let cut = if self.cuts.is_empty() { body.len() } else { self.cuts.remove(0) };
            stream.write_all(&body[..cut.min(body.len())])?;
        }
        Ok(())
    }
}

#[test]
fn a_whole_file_arrives_and_is_not_fetched_twice() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(700_000);
    let server = Server::start(Serve { bytes: bytes.clone(), ..Serve::default() });
    let model = model(&bytes, vec![server.source.clone()]);
    for _ in 0..2 {
        let file = pull(&model, folder.path(), &options()).unwrap();
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
    assert_eq!(server.log(), ["HEAD", "GET"]);
    assert_eq!(names(folder.path()), ["tiny.gguf"]);
    assert_eq!(downloaded(folder.path()).unwrap(), ["tiny"]);
    assert_eq!(resolve_in(folder.path(), "tiny").unwrap(), folder.path().join("tiny.gguf"));
}

#[test]
fn a_cut_connection_is_resumed_where_it_broke() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(600_000);
    let cuts = vec![100_000, 0, 0, 200_000];
    let server = Server::start(Serve { bytes: bytes.clone(), cuts, ..Serve::default() });
    let model = model(&bytes, vec![server.source.clone()]);
    let file = pull(&model, folder.path(), &options()).unwrap();
    assert_eq!(fs::read(file).unwrap(), bytes);
    let expected = ["HEAD", "GET", "GET 100000", "GET 100000", "GET 100000", "GET 300000"];
    assert_eq!(server.log(), expected);
}

#[test]
fn what_an_earlier_pull_left_is_not_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(300_000);
    let cuts = vec![120_000, 0, 0, 0];
    let server = Server::start(Serve { bytes: bytes.clone(), cuts, ..Serve::default() });
    let model = model(&bytes, vec![server.source.clone()]);
    let error = pull(&model, folder.path(), &options()).unwrap_err();
    assert!(error.to_string().contains("pull again to resume"), "{error}");
    assert_eq!(fs::read(folder.path().join("tiny.gguf.part")).unwrap(), bytes[..120_000]);
    let file = pull(&model, folder.path(), &options()).unwrap();
    assert_eq!(fs::read(file).unwrap(), bytes);
    assert_eq!(server.log().last().unwrap(), "GET 120000");
}

#[test]
fn a_part_that_is_whole_needs_only_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(50_000);
    fs::write(folder.path().join("tiny.gguf.part"), &bytes).unwrap();
    let server = Server::start(Serve { bytes: bytes.clone(), ..Serve::default() });
    let model = model(&bytes, vec![server.source.clone()]);
    pull(&model, folder.path(), &options()).unwrap();
    assert_eq!(server.log(), ["HEAD"]);
}

#[test]
fn a_server_that_ignores_ranges_gives_the_file_from_its_start() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(300_000);
    let cuts = vec![120_000];
    let serve = Serve { bytes: bytes.clone(), cuts, ignores_range: true, ..Serve::default() };
    let server = Server::start(serve);
    let model = model(&bytes, vec![server.source.clone()]);
    let file = pull(&model, folder.path(), &options()).unwrap();
    assert_eq!(fs::read(file).unwrap(), bytes);
    assert_eq!(server.log(), ["HEAD", "GET", "GET 120000"]);
}

#[test]
fn a_wrong_hash_deletes_the_part_and_the_next_source_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(90_000);
    let mut forged = bytes.clone();
    forged[80_000] ^= 1;
    let bad = Server::start(Serve { bytes: forged, ..Serve::default() });
    let lone = model(&bytes, vec![bad.source.clone()]);
    let error = pull(&lone, folder.path(), &options()).unwrap_err();
    assert!(error.to_string().contains("SHA-256"), "{error}");
    assert!(error.to_string().contains("it was deleted"), "{error}");
    assert!(names(folder.path()).is_empty());
    let good = Server::start(Serve { bytes: bytes.clone(), ..Serve::default() });
    let both = model(&bytes, vec![bad.source, good.source]);
    let file = pull(&both, folder.path(), &options()).unwrap();
    assert_eq!(fs::read(file).unwrap(), bytes);
}

#[test]
fn a_hub_that_announces_another_file_is_not_downloaded_from() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(1_000);
    let etag = Some(sha256(b"another"));
    let server = Server::start(Serve { bytes: bytes.clone(), etag, ..Serve::default() });
    let error = pull(&model(&bytes, vec![server.source.clone()]), folder.path(), &options());
    assert!(error.unwrap_err().to_string().contains("announces another file"));
    assert_eq!(server.log(), ["HEAD"]);
}

#[test]
fn a_file_without_a_known_hash_is_held_to_what_the_hub_declares() {
    let bytes = content(40_000);
    let serve = Serve { bytes: bytes.clone(), redirects: true, ..Serve::default() };
    let unknown = |server: &Server| Model {
        n_bytes: None,
        sha256: None,
        ..model(&[], vec![server.source.clone()])
    };
    let folder = tempfile::tempdir().unwrap();
    let cuts = vec![10_000];
    let server = Server::start(Serve { cuts, ..serve.clone() });
    let file = pull(&unknown(&server), folder.path(), &options()).unwrap();
    assert_eq!(fs::read(file).unwrap(), bytes);
    assert_eq!(server.log(), ["HEAD", "GET", "GET", "GET 10000", "GET 10000"]);

    let folder = tempfile::tempdir().unwrap();
    let etag = Some(sha256(b"another"));
    let server = Server::start(Serve { etag, redirects: false, ..serve });
    let error = pull(&unknown(&server), folder.path(), &options()).unwrap_err();
    assert!(error.to_string().contains("SHA-256"), "{error}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn an_error_page_never_becomes_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let page = b"<html>log in first</html>".to_vec();
    let server = Server::start(Serve { bytes: page, ..Serve::default() });
    let model = Model { n_bytes: None, sha256: None, ..model(&[], vec![server.source]) };
    let error = pull(&model, folder.path(), &options()).unwrap_err();
    assert!(error.to_string().contains("not GGUF"), "{error}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_missing_file_and_a_closed_port_lead_to_the_next_source() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(5_000);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let closed = Source::Http(format!("http://{closed}/f.gguf"));
    let missing = Server::start(Serve { missing: true, ..Serve::default() });
    let alone = model(&bytes, vec![closed.clone(), missing.source.clone()]);
    let Err(RegistryError::Sources { failures, .. }) = pull(&alone, folder.path(), &options())
    else {
        panic!("no source has the file")
    };
    assert!(matches!(failures[0], SourceError::Unreachable { .. }), "{failures:?}");
    assert!(matches!(failures[1], SourceError::Status { status: 404, .. }), "{failures:?}");
    let good = Server::start(Serve { bytes: bytes.clone(), ..Serve::default() });
    let all = model(&bytes, vec![closed, missing.source, good.source]);
    assert_eq!(fs::read(pull(&all, folder.path(), &options()).unwrap()).unwrap(), bytes);
}

#[test]
fn a_hub_that_never_answers_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    // Accepts connections into its backlog and stays silent.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/f.gguf", silent.local_addr().unwrap());
    let options = PullOptions { stall_timeout: Duration::from_millis(50), ..options() };
    let error = pull(&model(&content(9), vec![Source::Http(url)]), folder.path(), &options);
    let Err(RegistryError::Sources { failures, .. }) = error else { panic!("nothing was sent") };
    assert!(matches!(failures[0], SourceError::Unreachable { .. }), "{failures:?}");
}

#[test]
fn two_pulls_at_once_fetch_the_file_once() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(2_000_000);
    let server = Server::start(Serve { bytes: bytes.clone(), ..Serve::default() });
    let model = model(&bytes, vec![server.source.clone()]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| pull(&model, folder.path(), &options()).unwrap());
        }
    });
    assert_eq!(server.log(), ["HEAD", "GET"]);
}

#[test]
fn a_full_disk_is_told_before_anything_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Serve { bytes: content(9), ..Serve::default() });
    let huge = |source| Model { n_bytes: Some(1 << 60), ..model(&[], vec![source]) };
    let wheels = Index::of(&content(9), 1).wheels;
    let error = pull(&huge(Source::Wheels(wheels)), folder.path(), &options()).unwrap_err();
    assert!(matches!(error, RegistryError::Storage(StorageError::NoRoom { .. })), "{error}");
    assert!(error.to_string().contains("free some space"), "{error}");
    let error = pull(&huge(server.source.clone()), folder.path(), &options()).unwrap_err();
    assert!(error.to_string().contains("announces another file: its size is 9"), "{error}");
}

/// A folder of wheels, and a program that serves them as `pip download` does.
struct Index {
    folder: tempfile::TempDir,
    wheels: Vec<Wheel>,
}

impl Index {
    fn of(bytes: &[u8], n_parts: usize) -> Self {
        let index = Self { folder: tempfile::tempdir().unwrap(), wheels: Vec::new() };
        let chunks = bytes.chunks(bytes.len().div_ceil(n_parts));
        let wheels = chunks.enumerate().map(|(idx, chunk)| index.add(idx + 1, chunk)).collect();
        // The last two arguments are the folder and the requirement.
        index.script("cp \"$here/$(echo \"$req\" | tr - _ | sed s/==/-/)\"-*.whl \"$dir\"");
        Self { wheels, ..index }
    }

    fn add(&self, number: usize, chunk: &[u8]) -> Wheel {
        let wheel = Wheel {
            package: format!("tiny-part{number}"),
            version: "0.1.0".to_owned(),
            member: format!("tiny_part{number}/data/part{number:02}.bin"),
        };
        let mut zip = ZipWriter::new(fs::File::create(self.wheel(number)).unwrap());
        zip.start_file(&*wheel.member, SimpleFileOptions::default()).unwrap();
        zip.write_all(chunk).unwrap();
        zip.finish().unwrap();
        wheel
    }

    fn wheel(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("tiny_part{number}-0.1.0-py3-none-any.whl"))
    }

    fn script(&self, download: &str) {
        let path = self.folder.path().join("pip");
        let here = self.folder.path().display();
        let script = format!(
            "#!/bin/sh\nhere='{here}'\n[ \"$1\" = download ] || exit 0\n\
             echo \"$*\" >> \"$here/calls\"\n\
             while [ $# -gt 2 ]; do shift; done\ndir=$1; req=$2\n{download}\n"
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn options(&self) -> PullOptions {
        let pip = self.folder.path().join("pip").display().to_string();
        PullOptions { clients: vec!["/no/such/python3 -m pip".to_owned(), pip], ..options() }
    }

    fn n_calls(&self) -> usize {
        let calls = fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        calls.lines().count()
    }

    fn model(&self, bytes: &[u8]) -> Model {
        model(bytes, vec![Source::Wheels(self.wheels.clone())])
    }
}

#[test]
fn parts_from_wheels_are_joined_in_order_and_the_wheels_deleted() {
    for n_parts in [1, 12] {
        let folder = tempfile::tempdir().unwrap();
        let bytes = content(60_007);
        let index = Index::of(&bytes, n_parts);
        let file = pull(&index.model(&bytes), folder.path(), &index.options()).unwrap();
        assert_eq!(fs::read(file).unwrap(), bytes);
        assert_eq!(names(folder.path()), ["tiny.gguf"]);
        assert_eq!(index.n_calls(), n_parts);
    }
}

#[test]
fn wheels_that_are_whole_are_kept_and_cut_ones_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(60_000);
    let index = Index::of(&bytes, 3);
    let kept = folder.path().join(".tiny.wheels");
    fs::create_dir(&kept).unwrap();
    let place = |number| kept.join(index.wheel(number).file_name().unwrap());
    fs::copy(index.wheel(1), place(1)).unwrap();
    let whole = fs::read(index.wheel(2)).unwrap();
    fs::write(place(2), &whole[..whole.len() / 2]).unwrap();
    let file = pull(&index.model(&bytes), folder.path(), &index.options()).unwrap();
    assert_eq!(fs::read(file).unwrap(), bytes);
    assert_eq!(index.n_calls(), 2);
}

#[test]
fn a_damaged_wheel_is_deleted_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(60_000);
    let index = Index::of(&bytes, 2);
    let whole = fs::read(index.wheel(2)).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 0xff;
    fs::write(index.wheel(2), damaged).unwrap();
    let model = index.model(&bytes);
    let error = pull(&model, folder.path(), &index.options()).unwrap_err().to_string();
    assert!(error.contains("tiny-part2") && error.contains("it was deleted"), "{error}");
    fs::write(index.wheel(2), whole).unwrap();
    pull(&model, folder.path(), &index.options()).unwrap();
    assert_eq!(index.n_calls(), 3);
}

#[test]
fn wheels_with_other_bytes_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(30_000);
    let mut forged = bytes.clone();
    forged[9_000] ^= 1;
    let index = Index::of(&forged, 3);
    let error = pull(&index.model(&bytes), folder.path(), &index.options()).unwrap_err();
    assert!(error.to_string().contains("SHA-256"), "{error}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn errors_of_pip_and_a_machine_without_it_are_told_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(1_000);
    let index = Index::of(&bytes, 1);
    let model = index.model(&bytes);
    index.script("echo 'WARNING: slow' >&2; echo 'ERROR: No matching distribution' >&2; exit 1");
    let error = pull(&model, folder.path(), &index.options()).unwrap_err().to_string();
    assert!(error.contains("ERROR: No matching distribution"), "{error}");
    assert_eq!(error.lines().count(), 1);
    let clients = vec!["/no/such/pip".to_owned()];
    let error = pull(&model, folder.path(), &PullOptions { clients, ..options() }).unwrap_err();
    assert!(error.to_string().contains("install Python with pip, or uv"), "{error}");
}

#[test]
fn an_unreachable_hub_leads_to_pypi() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(30_000);
    let index = Index::of(&bytes, 3);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut model = index.model(&bytes);
    model.sources.insert(0, Source::Http(format!("http://{closed}/f.gguf")));
    let file = pull(&model, folder.path(), &index.options()).unwrap();
    assert_eq!(fs::read(file).unwrap(), bytes);
}

#[test]
fn names_and_paths_resolve_or_the_error_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let error = |name: &str| resolve_in(folder.path(), name).unwrap_err().to_string();
    assert!(error("qwen3-0.6b").contains("`attar model pull qwen3-0.6b`"));
    assert!(error("hf:a/b/c.gguf").contains("`attar model pull hf:a/b/c.gguf`"));
    assert!(error("hf:a").contains("hf:OWNER/REPO/FILE"));
    assert!(error("qwen9").contains("known are smollm2-135m-instruct"));
    assert!(error("/no/such/file.gguf").contains("check the path"));
    let file = folder.path().join("mine.gguf");
    fs::write(&file, "GGUF").unwrap();
    assert_eq!(resolve_in(folder.path(), "mine").unwrap(), file);
    assert_eq!(resolve_in(folder.path(), file.to_str().unwrap()).unwrap(), file);
    assert_eq!(resolve_in(folder.path(), folder.path().to_str().unwrap()).unwrap(), folder.path());
    assert!(downloaded(&folder.path().join("none")).unwrap().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn wherever_the_connection_breaks_the_file_is_whole_or_not_there(
        n_bytes in 8_usize..50_000,
        cuts in prop::collection::vec(0_usize..30_000, 0..6),
        ignores_range: bool,
        left in 0_usize..60_000,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let bytes = content(n_bytes);
        let part: Vec<u8> = bytes.iter().copied().chain(0..255).take(left).collect();
        fs::write(folder.path().join("tiny.gguf.part"), part).unwrap();
        let serve = Serve { bytes: bytes.clone(), cuts, ignores_range, ..Serve::default() };
        let server = Server::start(serve);
        let model = model(&bytes, vec![server.source]);
        let mut n_pulls = 0;
        while let Err(error) = pull(&model, folder.path(), &options()) {
            prop_assert!(!folder.path().join("tiny.gguf").exists());
            n_pulls += 1;
            prop_assert!(n_pulls < 8, "{}", error);
        }
        prop_assert_eq!(fs::read(folder.path().join("tiny.gguf")).unwrap(), bytes);
    }
}
