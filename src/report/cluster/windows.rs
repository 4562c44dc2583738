//! The file that keeps when the VPA recommender was told of which container: a list in JSON, replaced whole.
//!
//! Losing it costs one Event too many for each container, so a file that cannot be used is only remarked upon.

use std::io;
use std::path::{Path, PathBuf};

use crate::files::replace_atomically;
use crate::report::events::LastTold;

#[derive(Debug)]
pub(super) struct Windows {
    path: PathBuf,
}

impl Windows {
    /// The file, and what is in it.
    pub(super) async fn open(path: PathBuf) -> (Self, Vec<LastTold>) {
        let told = match read(&path).await {
            Ok(told) => told,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "what the VPA recommender was told before is not known");
                Vec::new()
            }
        };
        (Self { path }, told)
    }

    pub(super) async fn keep(&self, told: impl Iterator<Item = LastTold>) {
        let told: Vec<LastTold> = told.collect();
        let path = self.path.clone();
        let replace = move || replace_atomically(&path, |new| Ok(serde_json::to_writer(new, &told)?)).map(drop);
        let replaced = tokio::task::spawn_blocking(replace).await;
        if let Err(error) = replaced.map_err(io::Error::from).flatten() {
            tracing::warn!(path = %self.path.display(), %error, "what the VPA recommender was told is not kept");
        }
    }
}

async fn read(path: &Path) -> io::Result<Vec<LastTold>> {
    match tokio::fs::read(path).await {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[tokio::test]
    async fn what_was_told_is_known_again_and_what_is_not_understood_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vpa-events.json");
        let told = LastTold {
            pod: "u".to_owned(),
            container: "app".to_owned(),
            at: Timestamp::UNIX_EPOCH,
        };
        let (windows, before) = Windows::open(path.clone()).await;
        assert_eq!(before, []);
        windows.keep([told.clone()].into_iter()).await;
        assert_eq!(Windows::open(path.clone()).await.1, [told]);
        std::fs::write(&path, "[{").unwrap();
        assert_eq!(Windows::open(path).await.1, []);
    }
}
