//! A store whose disk fails at the n-th write, for every n.

use std::sync::{Arc, Mutex};

use super::chunk::Images;
use super::memory::Memory;
use super::records::{Batch, Durability, Records};
use super::text::Texts;
use super::{Image, ImageError, ImageSource, Store, StoreError, Turn};

const LIMIT: u64 = 1 << 30;

/// What is on disk, and how long it works.
#[derive(Default)]
struct Disk {
    /// Writes that still succeed.
    n_left: usize,
    /// Writes that fail after these, before it works again.
    n_failing: usize,
    n_failed: usize,
}

impl Disk {
    fn write(&mut self) -> Result<(), StoreError> {
        if self.n_left > 0 {
            self.n_left -= 1;
        } else if self.n_failing > 0 {
            self.n_failing -= 1;
            self.n_failed += 1;
            return Err(StoreError::DiskFull { dir: "disk".into(), needed: 1, free: 0 });
        }
        Ok(())
    }
}

/// One database on the failing disk.
#[derive(Clone)]
struct Failing {
    disk: Arc<Mutex<Disk>>,
    written: Arc<Memory>,
    /// What the last `persist` left.
    synced: Arc<Mutex<Memory>>,
}

impl Failing {
    fn new(disk: &Arc<Mutex<Disk>>, holds: &Memory) -> Self {
        let written = Arc::new(holds.snapshot());
        let synced = Arc::new(Mutex::new(holds.snapshot()));
        Self { disk: disk.clone(), written, synced }
    }

    fn has_failed(&self) -> bool {
        self.disk.lock().unwrap().n_failed > 0
    }
}

impl Records for Failing {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.written.get(key)
    }

    fn visit(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        self.written.visit(prefix, each)
    }

    fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        self.disk.lock().unwrap().write()?;
        self.written.commit(batch)
    }

    fn persist(&self, _: Durability) -> Result<(), StoreError> {
        self.disk.lock().unwrap().write()?;
        *self.synced.lock().unwrap() = self.written.snapshot();
        Ok(())
    }

    fn size_on_disk(&self) -> u64 {
        self.written.size_on_disk()
    }
}

/// Both databases.
struct Databases {
    history: Memory,
    cache: Memory,
}

impl Databases {
    fn empty() -> Self {
        Self { history: Memory::default(), cache: Memory::default() }
    }

    fn store(&self) -> Store {
        self.failing_store(usize::MAX, 0).0
    }

    fn failing_store(&self, n_left: usize, n_failing: usize) -> (Store, [Failing; 2]) {
        let disk = Arc::new(Mutex::new(Disk { n_left, n_failing, n_failed: 0 }));
        let halves = [Failing::new(&disk, &self.history), Failing::new(&disk, &self.cache)];
        let [history, cache] = halves.clone();
        let images = Images::open(Box::new(cache), LIMIT).unwrap();
        (Store::new(Texts::new(Box::new(history)), images, Vec::new(), None), halves)
    }

    fn left_by([history, cache]: &[Failing; 2], after_power_loss: bool) -> Self {
        if after_power_loss {
            let synced = |half: &Failing| half.synced.lock().unwrap().snapshot();
            return Self { history: synced(history), cache: synced(cache) };
        }
        Self { history: history.written.snapshot(), cache: cache.written.snapshot() }
    }
}

type Text = (Option<Vec<u8>>, Vec<Vec<u8>>);

fn text(store: &Store, id: &str) -> Text {
    (store.header(id).unwrap(), store.entries(id).unwrap())
}

fn image(store: &Store, id: &str) -> Option<Image> {
    store.image(id).expect("no image is torn")
}

/// An image of more than one batch: chunk `n` is filled by `version` where `n % 3 == version % 3`.
fn some_image(version: u8, n_chunks: u64) -> Image {
    let chunk = |n: u64| {
        let byte = if n % 3 == u64::from(version % 3) { version } else { 0 };
        (n, vec![byte; 60_000])
    };
    Image {
        fingerprint: "weights".into(),
        meta: vec![version; 70_000],
        chunks: (0..n_chunks).map(chunk).collect(),
    }
}

fn commit(store: &Store, version: u8, image: &Image) -> Result<bool, StoreError> {
    let entries = [vec![version; 100_000], vec![version; 10]];
    let first_entry = 2 * (u64::from(version) - 1);
    let turn = Turn { header: &[version], first_entry, entries: &entries, image: Some(image) };
    Ok(store.commit("a", turn)?.image_error.is_none())
}

/// Runs `write`, which tells whether the image was kept too, on a disk that fails for good at each of its writes, and compares what is found
/// then with what was there before and what would be there after.
#[track_caller]
fn check(before: &Databases, id: &str, write: impl Fn(&Store) -> Result<bool, StoreError>) {
    let old = before.store();
    let new = before.store();
    write(&new).unwrap();

    for n in 0.. {
        let (store, halves) = before.failing_store(n, usize::MAX);
        let res = write(&store);
        for after_power_loss in [false, true] {
            let found = Databases::left_by(&halves, after_power_loss).store();
            let (text_found, image_found) = (text(&found, id), image(&found, id));
            let case = format!("write {n}, power loss {after_power_loss}, {res:?}");
            let is_new_text = text_found == text(&new, id);
            let is_new_image = image_found == image(&new, id);
            assert!(is_new_text || text_found == text(&old, id), "{case}: text");
            assert!(is_new_image || image_found == image(&old, id), "{case}: image");
            match res {
                Ok(true) => assert!(is_new_text && is_new_image, "{case}: acknowledged"),
                Ok(false) => assert!(is_new_text, "{case}: acknowledged"),
                Err(_) => {}
            }
        }
        if !halves[0].has_failed() {
            assert!(n > 2, "hardly a write was made to fail");
            return;
        }
    }
}

/// A session after one turn.
fn one_turn() -> Databases {
    let (store, halves) = Databases::empty().failing_store(usize::MAX, 0);
    assert!(commit(&store, 1, &some_image(1, 90)).unwrap());
    Databases::left_by(&halves, true)
}

#[test]
fn a_first_turn_is_kept_whole_or_not_at_all() {
    check(&Databases::empty(), "a", |store| commit(store, 1, &some_image(1, 90)));
}

#[test]
fn a_growing_or_shrinking_image_is_the_old_or_the_new() {
    for n_chunks in [120, 90, 20] {
        check(&one_turn(), "a", |store| commit(store, 2, &some_image(2, n_chunks)));
    }
}

#[test]
fn an_interrupted_deletion_leaves_no_half_of_a_text() {
    check(&one_turn(), "a", |store| store.delete("a").map(|()| true));
}

#[test]
fn an_interrupted_copy_leaves_no_half_of_a_text() {
    check(&one_turn(), "b", |store| {
        // A copy vouches for the text; its image may be missing.
        store.copy("a", "b").map(|()| false)
    });
}

#[test]
fn a_store_goes_on_after_a_write_that_failed() {
    let before = one_turn();
    for n in 0.. {
        let (store, [history, _]) = before.failing_store(n, 1);
        // As a caller would: what was not acknowledged and is not there is tried again.
        if commit(&store, 2, &some_image(2, 120)).is_err() && store.entries("a").unwrap().len() == 2
        {
            commit(&store, 2, &some_image(2, 120)).unwrap();
        }
        assert_eq!(store.entries("a").unwrap().len(), 4, "write {n}");
        if !history.has_failed() {
            return;
        }
        let last = some_image(3, 100);
        assert!(commit(&store, 3, &last).unwrap(), "write {n}");
        assert_eq!(image(&store, "a"), Some(last), "write {n}");
    }
}

#[test]
fn chunks_of_a_save_that_was_interrupted_are_cleared_away() {
    let (store, halves) = Databases::empty().failing_store(3, usize::MAX);
    assert!(!commit(&store, 1, &some_image(1, 300)).unwrap());
    let left = Databases::left_by(&halves, false);
    assert!(left.cache.len() > 50, "nothing was left to clear away");

    let (store, [_, cache]) = left.failing_store(usize::MAX, 0);
    let turn = Turn { header: &[], first_entry: 2, entries: &[], image: Some(&some_image(2, 3)) };
    assert!(store.commit("a", turn).unwrap().image_error.is_none());
    let n_manifest_parts = 2;
    assert_eq!(cache.written.len(), 3 + n_manifest_parts + 1);
}

#[test]
fn a_flipped_byte_in_a_chunk_is_damage_and_the_text_is_fine() {
    let before = one_turn();
    let mut batch = Batch::default();
    let mut n_seen = 0;
    let flip = &mut |key: &[u8], value: &[u8]| {
        n_seen += 1;
        if n_seen == 40 {
            let mut value = value.to_vec();
            value[1000] ^= 1;
            batch.put(key.to_vec(), value);
        }
    };
    before.cache.visit(b"c/", flip).unwrap();
    before.cache.commit(batch).unwrap();

    let store = before.store();
    let err = store.image("a").unwrap_err();
    assert!(matches!(&err, ImageError::Damaged { what } if what.contains("chunk 39")), "{err}");
    assert_eq!(text(&store, "a"), text(&one_turn().store(), "a"));
    assert!(store.image("a").unwrap().is_none(), "it is told once");
    // The same cache again: no chunk may be taken for unchanged.
    let again = some_image(1, 90);
    let turn = Turn { header: &[], first_entry: 2, entries: &[], image: Some(&again) };
    assert_eq!(store.commit("a", turn).unwrap().chunks, 90);
    assert_eq!(image(&store, "a"), Some(again));
}

#[test]
fn an_image_of_more_text_than_there_is_is_damage() {
    let Databases { cache, .. } = one_turn();
    let store = Databases { history: Memory::default(), cache }.store();
    assert!(matches!(store.image("a"), Err(ImageError::Damaged { .. })));
}

#[test]
fn a_lost_entry_is_named() {
    let before = one_turn();
    let mut batch = Batch::default();
    batch.delete(b"e/a/\0\0\0\0\0\0\0\x01\0\0\0\0".to_vec());
    before.history.commit(batch).unwrap();
    let err = before.store().entries("a").unwrap_err();
    assert_eq!(err.to_string(), "entry 1 of session a is missing");
}

/// Databases as they are listed in `fixtures/store`: one record a line, its database, key and
/// value, both in hexadecimal.
fn listing(databases: &Databases) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut lines = String::new();
    for (name, records) in [("history", &databases.history), ("cache", &databases.cache)] {
        let line = &mut |key: &[u8], value: &[u8]| {
            lines += &format!("{name} {} {}\n", hex(key), hex(value));
        };
        records.visit(b"", line).unwrap();
    }
    lines
}

fn unlisted(listing: &str) -> Databases {
    let bytes = |hex: &str| {
        let pairs = hex.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect::<Vec<u8>>()
    };
    let databases = Databases::empty();
    for line in listing.lines() {
        let [name, key, value] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let mut batch = Batch::default();
        batch.put(bytes(key), bytes(value));
        let records = if name == "history" { &databases.history } else { &databases.cache };
        records.commit(batch).unwrap();
    }
    databases
}

/// The session in `fixtures/store/v1.*`.
fn fixture_image(turn: u8) -> Image {
    Image {
        fingerprint: "weights tokenizer f16 rkv-1".into(),
        meta: vec![turn, 0, 255],
        chunks: vec![(0, b"stays".to_vec()), (7, vec![turn; 9]), (u64::MAX, Vec::new())],
    }
}

#[test]
fn databases_of_version_1_are_read_and_written_as_ever() {
    let (store, halves) = Databases::empty().failing_store(usize::MAX, 0);
    for turn in [1, 2] {
        let (header, image) = ([b'h', turn], fixture_image(turn));
        let entries = [format!(r#"{{"role":"user","content":"turn {turn}"}}"#).into_bytes()];
        let first_entry = u64::from(turn) - 1;
        let image = Some(&image as &dyn ImageSource);
        let turn = Turn { header: &header, first_entry, entries: &entries, image };
        assert!(store.commit("v1:a-session", turn).unwrap().image_error.is_none());
    }
    store.set_partial("v1:a-session", b"half a tu").unwrap();
    let listed = include_str!("../../fixtures/store/v1.records");
    assert_eq!(listing(&Databases::left_by(&halves, false)), listed);

    let old = unlisted(listed).store();
    assert_eq!(text(&old, "v1:a-session"), text(&store, "v1:a-session"));
    assert_eq!(image(&old, "v1:a-session"), Some(fixture_image(2)));
    assert_eq!(old.partial("v1:a-session").unwrap().unwrap(), b"half a tu");
}

#[test]
fn a_file_of_version_1_is_imported_and_exported_as_ever() {
    let file = include_bytes!("../../fixtures/store/v1.attar-session");
    let store = Store::in_memory();
    assert_eq!(store.import(&mut &file[..], None).unwrap(), "v1:a-session");
    assert_eq!(store.header("v1:a-session").unwrap().unwrap(), [b'h', 2]);
    assert_eq!(store.entries("v1:a-session").unwrap().len(), 2);
    assert_eq!(image(&store, "v1:a-session"), Some(fixture_image(2)));
    let mut again = Vec::new();
    store.export("v1:a-session", &mut again).unwrap();
    assert_eq!(again, file);
}
