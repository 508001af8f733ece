//! The store as its callers see it, on disk: kills, damage, locks, growth.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use attar::store::{
    DEFAULT_LIMIT_BYTES, Durability, Image, ImageError, ImageSource, MAX_CHUNK_BYTES, Store,
    StoreError, Turn,
};
use proptest::prelude::*;
use tempfile::TempDir;

/// Runs `check` on an empty store of each kind.
fn both(check: impl Fn(Store)) {
    check(Store::in_memory());
    let dir = TempDir::new().unwrap();
    check(open(dir.path()));
}

fn open(dir: &Path) -> Store {
    Store::open(dir, DEFAULT_LIMIT_BYTES).unwrap()
}

/// Turn `n` says `n`; its image has `n_chunks` chunks of which two in three change.
fn image(n: u64, n_chunks: u64) -> Image {
    let chunk = |key: u64| {
        let seed = if key.is_multiple_of(3) { key } else { key + (n << 32) };
        let mut bytes = vec![0; MAX_CHUNK_BYTES];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
        (key, bytes)
    };
    Image {
        fingerprint: "weights".into(),
        meta: n.to_le_bytes().to_vec(),
        chunks: (0..n_chunks).map(chunk).collect(),
    }
}

fn entry(n: u64) -> Vec<u8> {
    format!("entry {n} ").into_bytes().repeat(100)
}

fn commit(store: &Store, id: &str, n: u64, image: Option<&Image>) {
    let header = n.to_le_bytes();
    let entries = [entry(n)];
    let image = image.map(|image| image as &dyn ImageSource);
    let written =
        store.commit(id, Turn { header: &header, first_entry: n, entries: &entries, image });
    assert!(written.unwrap().image_error.is_none());
}

/// A store in `dir` with three sessions of three turns.
fn three_sessions(dir: &Path) {
    let store = open(dir);
    for id in ["a", "b", "c"] {
        (0..3).for_each(|n| commit(&store, id, n, Some(&image(n, 20))));
    }
}

#[test]
fn a_session_is_read_back_as_it_was_written() {
    both(|store| {
        assert_eq!(store.header("a").unwrap(), None);
        assert!(store.entries("a").unwrap().is_empty());
        assert!(store.image("a").unwrap().is_none());

        // An entry of many MiB, and an empty one.
        let entries = [vec![7; 5 << 20], Vec::new(), b"{}".to_vec()];
        let first = image(0, 3);
        let turn = Turn { header: b"head", first_entry: 0, entries: &entries, image: Some(&first) };
        store.commit("a", turn).unwrap();
        assert_eq!(store.header("a").unwrap().unwrap(), b"head");
        assert_eq!(store.entries("a").unwrap(), entries);
        assert_eq!(store.image("a").unwrap(), Some(first.clone()));
        let stats = store.stats("a").unwrap();
        assert_eq!((stats.n_entries, stats.text_bytes), (3, (5 << 20) + 2));
        assert_eq!(stats.image_bytes, 3 * MAX_CHUNK_BYTES as u64 + 8);

        // A turn without an image leaves the one that is there.
        let turn = Turn { header: b"h", first_entry: 3, entries: &[b"more".to_vec()], image: None };
        store.commit("a", turn).unwrap();
        assert_eq!(store.entries("a").unwrap().len(), 4);
        assert_eq!(store.image("a").unwrap(), Some(first));
        assert_eq!(store.entries("a").unwrap().len(), 4);
    });
}

#[test]
fn unchanged_chunks_are_not_written_again() {
    both(|store| {
        let mut image = image(0, 12);
        commit(&store, "a", 0, Some(&image));
        let save = |image: &Image| {
            let turn = Turn { header: b"h", first_entry: 1, entries: &[], image: Some(image) };
            let written = store.commit("a", turn).unwrap();
            (written.chunks, written.bytes)
        };
        let (n_chunks, n_bytes) = save(&image);
        assert_eq!(n_chunks, 0);
        assert!(n_bytes < 2000, "{n_bytes} bytes for nothing new");
        image.chunks[5].1[0] ^= 1;
        image.chunks.remove(3);
        image.chunks.push((99, b"new".to_vec()));
        assert_eq!(save(&image).0, 2);
        assert_eq!(store.image("a").unwrap(), Some(image));
    });
}

#[test]
fn an_unfinished_turn_is_kept_until_the_turn_is_committed() {
    both(|store| {
        assert_eq!(store.partial("a").unwrap(), None);
        for len in [200_000, 10] {
            store.set_partial("a", &vec![1; len]).unwrap();
            assert_eq!(store.partial("a").unwrap().unwrap().len(), len);
        }
        store.clear_partial("a").unwrap();
        assert_eq!(store.partial("a").unwrap(), None);
        store.set_partial("a", b"half").unwrap();
        commit(&store, "a", 0, None);
        assert_eq!(store.partial("a").unwrap(), None);
    });
}

#[test]
fn sessions_are_listed_copied_and_deleted_each_by_itself() {
    both(|store| {
        for (n, id) in ["s", "s.1", "s-1", "s:1", "S_1"].iter().enumerate() {
            commit(&store, id, 0, Some(&image(n as u64, 2)));
        }
        let ids =
            |store: &Store| store.list().unwrap().into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ids(&store), ["S_1", "s", "s-1", "s.1", "s:1"]);

        store.copy("s", "fork").unwrap();
        commit(&store, "fork", 1, Some(&image(7, 2)));
        assert_eq!(store.entries("s").unwrap().len(), 1);
        assert_eq!(store.image("s").unwrap(), Some(image(0, 2)));
        assert_eq!(store.image("fork").unwrap(), Some(image(7, 2)));
        assert!(matches!(store.copy("s", "fork"), Err(StoreError::Exists { id }) if id == "fork"));
        assert!(
            matches!(store.copy("none", "x"), Err(StoreError::NotFound { id }) if id == "none")
        );

        store.delete("s").unwrap();
        assert!(matches!(store.delete("s"), Err(StoreError::NotFound { .. })));
        assert_eq!(ids(&store), ["S_1", "fork", "s-1", "s.1", "s:1"]);
        assert!(store.image("s").unwrap().is_none());
        assert_eq!(store.image("s.1").unwrap(), Some(image(1, 2)));
        assert_eq!(store.entries("fork").unwrap().len(), 2);
    });
}

#[test]
fn what_cannot_be_right_is_refused_and_changes_nothing() {
    both(|store| {
        for id in ["", "a/b", "a b", "ü", &"x".repeat(257)] {
            assert!(matches!(store.header(id), Err(StoreError::BadId { .. })), "{id}");
        }
        commit(&store, "a", 0, Some(&image(0, 1)));
        for first_entry in [0, 2] {
            let turn = Turn { header: b"", first_entry, entries: &[vec![1]], image: None };
            let err = store.commit("a", turn).unwrap_err();
            assert!(matches!(err, StoreError::OutOfOrder { expected: 1, .. }), "{err}");
        }
        let chunk = |key, n_bytes| (key, vec![0_u8; n_bytes]);
        for chunks in [vec![chunk(0, MAX_CHUNK_BYTES + 1)], vec![chunk(3, 1), chunk(3, 1)]] {
            let bad = Image { chunks, ..Image::default() };
            let turn = Turn { header: b"", first_entry: 1, entries: &[], image: Some(&bad) };
            assert!(store.commit("a", turn).unwrap().image_error.is_some());
        }
        assert_eq!(store.entries("a").unwrap(), [entry(0)]);
        assert_eq!(store.image("a").unwrap(), Some(image(0, 1)));
    });
}

#[test]
fn an_exported_session_is_imported_whole_or_refused() {
    both(|store| {
        (0..3).for_each(|n| commit(&store, "a", n, Some(&image(n, 3))));
        let mut file = Vec::new();
        store.export("a", &mut file).unwrap();

        let taken = store.import(&mut &file[..], None).unwrap_err();
        assert!(matches!(taken, StoreError::Exists { .. }), "{taken}");
        assert_eq!(store.import(&mut &file[..], Some("b")).unwrap(), "b");
        assert_eq!(store.entries("b").unwrap(), store.entries("a").unwrap());
        assert_eq!(store.header("b").unwrap(), store.header("a").unwrap());
        assert_eq!(store.image("b").unwrap(), Some(image(2, 3)));

        let other = Store::in_memory();
        for len in (0..file.len()).step_by(997).chain([file.len() - 1]) {
            assert!(other.import(&mut &file[..len], None).is_err(), "cut to {len} bytes");
        }
        file.push(b' ');
        assert!(other.import(&mut &file[..], None).is_err(), "one byte too many");
        file.pop();
        file[14] = 9;
        let err = other.import(&mut &file[..], None).unwrap_err();
        assert!(matches!(err, StoreError::UnsupportedVersion { found: 9, .. }), "{err}");
        assert!(other.list().unwrap().is_empty());
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn a_file_with_a_changed_byte_is_refused(at in any::<prop::sample::Index>(), bit in 0..8) {
        let store = Store::in_memory();
        commit(&store, "a", 0, Some(&image(0, 1)));
        let mut file = Vec::new();
        store.export("a", &mut file).unwrap();
        // Most of the file is one chunk: look at its two ends.
        let near = at.index(2000);
        let at = if near < 1500 { near } else { file.len() - 2000 + near };
        file[at] ^= 1_u8 << bit;
        let other = Store::in_memory();
        prop_assert!(other.import(&mut &file[..], None).is_err());
        prop_assert!(other.list().unwrap().is_empty());
    }
}

#[test]
fn caches_go_by_least_recent_use_and_text_stays() {
    let dir = TempDir::new().unwrap();
    // Room for three images of four chunks, each of which comes to take five times itself.
    let limit = 3 * 5 * (4 * MAX_CHUNK_BYTES as u64 + 8);
    let kept = |store: &Store, ids: &[&str]| {
        ids.iter().map(|id| store.stats(id).unwrap().image_bytes > 0).collect::<Vec<_>>()
    };
    {
        let store = Store::open(dir.path(), limit).unwrap();
        ["a", "b", "c"].iter().for_each(|id| commit(&store, id, 0, Some(&image(0, 4))));
        assert_eq!(kept(&store, &["a", "b", "c"]), [true, true, true]);
        store.image("a").unwrap();
    }
    // Uses are remembered over a restart.
    let store = Store::open(dir.path(), limit).unwrap();
    commit(&store, "d", 0, Some(&image(0, 4)));
    assert_eq!(kept(&store, &["a", "b", "c", "d"]), [true, false, true, true]);
    assert!(store.image("b").unwrap().is_none());
    assert_eq!(store.entries("b").unwrap(), [entry(0)]);

    let large = image(0, 20);
    let turn = Turn { header: b"", first_entry: 1, entries: &[], image: Some(&large) };
    let err = store.commit("d", turn).unwrap().image_error.unwrap();
    assert!(matches!(err, StoreError::ImageTooLarge { .. }), "{err}");
    assert_eq!(kept(&store, &["a", "c", "d"]), [true, true, true]);
}

#[test]
fn a_second_opening_is_refused_and_names_the_holder() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path());
    let err = Store::open(dir.path(), DEFAULT_LIMIT_BYTES).err().unwrap();
    let pid = std::process::id();
    assert!(matches!(err, StoreError::Locked { holder: Some(holder), .. } if holder == pid));
    let clone = store.clone();
    drop(store);
    assert!(Store::open(dir.path(), DEFAULT_LIMIT_BYTES).is_err(), "a clone still holds it");
    drop(clone);
    open(dir.path());
}

const WRITER: &str = "ATTAR_STORE_WRITER";

/// Not a test by itself: the child that the next test kills. It goes on where the last one was
/// killed, and says each turn that it was promised.
#[test]
fn a_writer_to_be_killed() {
    let Ok(dir) = env::var(WRITER) else { return };
    let store = open(Path::new(&dir));
    for n in store.entries("a").unwrap().len() as u64.. {
        store.set_partial("a", &n.to_le_bytes()).unwrap();
        // The image grows and shrinks by some chunks.
        commit(&store, "a", n, Some(&image(n, 90 + n % 7)));
        println!("\npromised {n}");
    }
}

#[test]
fn nothing_promised_is_lost_when_the_process_is_killed() {
    let dir = TempDir::new().unwrap();
    let mut n_promised = 0;
    for round in 0..30_u64 {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["store::a_writer_to_be_killed", "--exact", "--nocapture"])
            .env(WRITER, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut promise = || {
            let line = lines.find(|line| line.starts_with("promised ")).expect("it still writes");
            n_promised = n_promised.max(line["promised ".len()..].parse::<u64>().unwrap() + 1);
        };
        (0..1 + round % 3).for_each(|_| promise());
        // Some work, to be somewhere else in a turn each round.
        std::hint::black_box(blake3::hash(&vec![0; round as usize * (3 << 20)]));
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.filter(|line| line.starts_with("promised ")) {
            n_promised = n_promised.max(line["promised ".len()..].parse::<u64>().unwrap() + 1);
        }

        let store = open(dir.path());
        assert!(store.set_aside().is_empty(), "round {round}");
        let entries = store.entries("a").unwrap();
        let n_found = entries.len() as u64;
        assert!((n_promised..=n_promised + 1).contains(&n_found), "{n_found} of {n_promised}");
        assert!(entries.into_iter().zip(0..).all(|(found, n)| found == entry(n)));
        assert_eq!(store.header("a").unwrap().unwrap(), (n_found - 1).to_le_bytes());
        let found = store.image("a").unwrap().expect("an image was promised");
        let n = u64::from_le_bytes(found.meta[..].try_into().unwrap());
        assert!(n + 1 >= n_promised, "round {round}: image {n} of {n_promised} promised turns");
        assert!(found == image(n, 90 + n % 7), "round {round}: image {n} is torn");
    }
}

#[test]
fn an_unfinished_snapshot_of_the_database_is_no_obstacle() {
    let dir = TempDir::new().unwrap();
    three_sessions(dir.path());
    for database in ["history", "cache"] {
        fs::write(dir.path().join(database).join("snap.00000000000FFFFF.generating"), b"x")
            .unwrap();
    }
    let store = open(dir.path());
    assert!(store.set_aside().is_empty());
    assert_eq!(store.image("a").unwrap(), Some(image(2, 20)));
}

/// Files of a database that sled reads.
fn database_files(dir: &Path) -> Vec<std::path::PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.is_file()).collect()
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(file.file_name());
        if file.file_type().unwrap().is_dir() {
            copy_dir(&file.path(), &to);
        } else {
            fs::copy(file.path(), to).unwrap();
        }
    }
}

/// Opens a store whose files in `database` were each damaged by `damage` in turn: it must open,
/// twice, and give nothing that was not written; the other database must give all.
#[track_caller]
fn check_damage(database: &str, damage: impl Fn(&Path)) {
    let whole = TempDir::new().unwrap();
    three_sessions(whole.path());
    for file in database_files(&whole.path().join(database)) {
        let name = file.file_name().unwrap();
        let dir = TempDir::new().unwrap();
        copy_dir(whole.path(), dir.path());
        damage(&dir.path().join(database).join(name));
        for opening in 0..2 {
            let store = open(dir.path());
            for id in ["a", "b", "c"] {
                let case = format!("{database}/{}, session {id}", name.display());
                let entries = store.entries(id);
                match &entries {
                    Ok(found) => assert!(found.iter().zip(0..).all(|(e, n)| *e == entry(n))),
                    Err(err) => assert!(matches!(err, StoreError::Damaged { .. }), "{case}: {err}"),
                }
                match store.image(id) {
                    Ok(Some(found)) => assert!((0..3).any(|n| found == image(n, 20)), "{case}"),
                    Ok(None) | Err(ImageError::Damaged { .. }) => {}
                    Err(err @ ImageError::Store(_)) => panic!("{case}: {err}"),
                }
                if database == "cache" {
                    assert_eq!(entries.unwrap().len(), 3, "{case}: the text");
                } else if opening == 1 {
                    assert!(entries.is_ok(), "{case}: the second opening mends the history");
                }
            }
        }
        // And it goes on.
        let store = open(dir.path());
        commit(&store, "new", 0, Some(&image(0, 5)));
        assert_eq!(store.image("new").unwrap(), Some(image(0, 5)));
        for aside in store.set_aside() {
            assert!(aside.exists());
        }
    }
}

fn cut(file: &Path, part: impl Fn(u64) -> u64) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(part(len)).unwrap();
}

#[test]
fn a_cut_cache_file_costs_no_text() {
    for part in [0, 1, 50, 90, 99] {
        check_damage("cache", |file| cut(file, |len| len * part / 100));
    }
}

#[test]
fn a_cut_history_file_costs_no_more_than_its_end() {
    for part in [0, 1, 50, 90, 99] {
        check_damage("history", |file| cut(file, |len| len * part / 100));
    }
}

fn scribble(file: &Path, at: impl Fn(usize) -> usize) {
    let mut bytes = fs::read(file).unwrap();
    let at = at(bytes.len());
    let end = (at + 64).min(bytes.len());
    bytes[at..end].fill(0xA5);
    OpenOptions::new().write(true).open(file).unwrap().write_all(&bytes).unwrap();
}

#[test]
fn an_overwritten_cache_file_costs_no_text() {
    for part in 0..10 {
        check_damage("cache", |file| scribble(file, |len| len * part / 10));
    }
}

#[test]
fn saving_again_and_again_does_not_fill_the_disk() {
    let dir = TempDir::new().unwrap();
    let store = Store::open_with(dir.path(), DEFAULT_LIMIT_BYTES, Durability::Process).unwrap();
    let n_bytes = image(0, 64).n_bytes();
    for n in 0..300 {
        commit(&store, "a", n, Some(&image(n, 64)));
    }
    let factor = store.size_on_disk() as f64 / n_bytes as f64;
    println!("300 saves of {} MiB take {factor:.1} times that", n_bytes >> 20);
    assert!(factor < 30.0, "{factor} times the image");
    assert_eq!(store.image("a").unwrap(), Some(image(299, 64)));
}
