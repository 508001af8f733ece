//! Checkpoints: sessions of the store whose ids name the session that they are of.

use super::error::SessionError;
use super::live::{Session, blocking};
use super::registry::{Open, Opened, Sessions, checkpoint_id, new_id, readable_header};

/// The longest name of a checkpoint, in bytes.
const NAME_BYTES_MAX: usize = 64;

impl Sessions {
    /// Keeps the session as it is now under a name of its own.
    pub async fn checkpoint(&self, id: &str, name: Option<String>) -> Result<String, SessionError> {
        if name.as_ref().is_some_and(|name| name.is_empty() || name.contains(':')) {
            return Err(SessionError::Invalid(
                "a checkpoint's name is not empty and has no `:`".to_owned(),
            ));
        }
        if name.as_ref().is_some_and(|name| name.len() > NAME_BYTES_MAX) {
            return Err(SessionError::Invalid(format!(
                "a checkpoint's name has at most {NAME_BYTES_MAX} bytes"
            )));
        }
        let mut guard = self.guard(id).await?;
        guard.touch().await?;
        let name = name.unwrap_or_else(|| format!("c{}", guard.header.updated_ms));
        let (store, from, to) = (self.store().clone(), id.to_owned(), checkpoint_id(id, &name));
        blocking(move || Ok(store.replace(&from, &to)?)).await?;
        Ok(name)
    }

    /// Takes a session back to a checkpoint, the latest where none is named.
    pub async fn rollback(&self, id: &str, name: Option<String>) -> Result<String, SessionError> {
        let mut place = self.place(id).await?;
        let name = self.find_checkpoint(id, name).await?;
        if let Some(session) = place.session.as_mut() {
            session.leave_memory();
        }
        // Where the rest fails the session is closed: the store says what it is then.
        *place.session = None;
        let restored = self.restore(id, &name).await.map(|session| *place.session = Some(session));
        self.slots.settle(id, place);
        restored.map(|()| name)
    }

    async fn restore(&self, id: &str, checkpoint: &str) -> Result<Session, SessionError> {
        let (store, from, to) =
            (self.store().clone(), checkpoint_id(id, checkpoint), id.to_owned());
        blocking(move || Ok(store.replace(&from, &to)?)).await?;
        Ok(self.load(id, &Open::default()).await?.0)
    }

    async fn find_checkpoint(
        &self,
        id: &str,
        name: Option<String>,
    ) -> Result<String, SessionError> {
        let (store, prefix) = (self.store().clone(), checkpoint_id(id, ""));
        let known = blocking(move || {
            let mut known = Vec::new();
            for (key, header) in store.list()? {
                if let Some(name) = key.strip_prefix(&prefix) {
                    let header = readable_header(&key, &header);
                    known.extend(header.map(|header| (header.updated_ms, name.to_owned())));
                }
            }
            Ok(known)
        })
        .await?;
        let mut known = known.into_iter();
        let found = match &name {
            Some(name) => known.find(|(_, known)| known == name),
            None => known.max(),
        };
        found.map(|(_, name)| name).ok_or_else(|| SessionError::NoCheckpoint {
            session: id.to_owned(),
            checkpoint: name.unwrap_or_else(|| "of any name".to_owned()),
        })
    }

    /// Copies a session, or one of its checkpoints, to a new session.
    pub async fn fork(&self, id: &str, checkpoint: Option<String>) -> Result<Opened, SessionError> {
        let from = match checkpoint {
            Some(name) => checkpoint_id(id, &self.find_checkpoint(id, Some(name)).await?),
            None => {
                self.guard(id).await?.save_cache().await?;
                id.to_owned()
            }
        };
        let (store, to) = (self.store().clone(), new_id());
        let key = to.clone();
        blocking(move || Ok(store.copy(&from, &key)?)).await?;
        self.open(Open { session: Some(to), ..Open::default() }).await
    }
}
