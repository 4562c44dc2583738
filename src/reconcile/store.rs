//! The state that survives a restart: of each pod the desired state ([`DesiredState`]) and the
//! patches of its spec ([`Resize`]).
//!
//! One JSON file, replaced whole ([`files::replace_atomically`]). A file that cannot be parsed is renamed, never
//! overwritten and never used in part. A task of its own writes the file: the controller never waits for the disk. The task
//! writes only the newest content, and skips contents that were replaced while the disk was busy.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Error, Result, anyhow, bail};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::desired::DesiredState;
use super::growth::GrowthPause;
use crate::decide::CanaryWait;
use crate::files;
use crate::guard::LimitFiles;
use crate::model::objects::{Pod, PodId, PodUid};
use crate::model::{ContainerName, PodAmounts};
use crate::plan::lift_kept;
use crate::plan::shrink::FailedShrinks;
use crate::rate_limiter::{Rate, RateLimiter};
use crate::resize::{Resize, taken_back};

const FILE_NAME: &str = "state.json";
/// Raised when the content changes its meaning.
const VERSION: u32 = 1;
/// How long a caller waits for the disk at most.
pub(crate) const LONGEST_SAVE_WAIT: Duration = Duration::from_secs(5);
/// How often the file is written at most because of what sources say of pods.
const DESCRIBE_EVERY: Duration = Duration::from_secs(5);
/// How often content that nobody waits for is written at most, with the pods of all namespaces: a namespace whose recommendations
/// change all the time costs the disk no more than this.
const WRITES: Rate = Rate::new(40, Duration::from_millis(250));

pub(crate) type SavedPods = BTreeMap<PodUid, Arc<SavedPod>>;

/// The part that every version of the file has.
#[derive(Debug, Deserialize)]
struct FileVersion {
    version: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    version: u32,
    pods: SavedPods,
}

/// The saved state of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPod {
    pub(crate) pod: PodId,
    /// The pod's latest object: the desired state can be enforced before any source answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) described: Option<Arc<Pod>>,
    #[serde(rename = "standing")]
    pub(crate) state: SavedTargets,
    #[serde(default, rename = "regrets", skip_serializing_if = "FailedShrinks::is_empty")]
    pub(crate) failed_shrinks: FailedShrinks,
    /// Until when the guard does not grow limits that the API server denied.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) pauses: BTreeMap<ContainerName, GrowthPause>,
    /// When a container last ran its `on-memory-pressure` hook.
    #[serde(default, rename = "pressed", skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) evidence_at: BTreeMap<ContainerName, Timestamp>,
    /// A change that other pods of the VPA get first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waits: Option<CanaryWait>,
}

/// The desired state and the resize of a pod, in one object of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedTargets {
    #[serde(flatten)]
    pub(crate) desired: DesiredState,
    #[serde(flatten)]
    pub(crate) resize: Resize,
}

impl SavedTargets {
    /// What outlasts the agent. Of a recommendation, that is what is in force.
    pub(crate) fn of(desired: &DesiredState, resize: &Resize, pod: &Pod) -> Self {
        let recommended = desired.recommended_in_force(pod, resize);
        Self {
            desired: desired.clone().with_recommended(recommended),
            resize: resize.saved(),
        }
    }
}

impl SavedPod {
    /// The spec of `pod` once overrides and temporary limits have ended, and requests that the kubelet has not allocated are taken
    /// back. `None` if there are none of them. Allocated recommendations stay, and so do limits that the agent keeps for now, and the
    /// amounts of other clients.
    pub(crate) fn without_own_requests(&self, pod: &Pod, now: Timestamp) -> Option<PodAmounts> {
        let SavedTargets { desired, resize } = &self.state;
        let (spec, open) = (pod.requirements(), resize.without_requests(pod));
        let Some(accepted) = resize.accepted().filter(|_| desired.is_by_hand()) else {
            return open;
        };
        let mut base = desired.base(pod);
        lift_kept(&self.failed_shrinks.holds(now), &mut base);
        let own = taken_back(open.as_ref().unwrap_or(&spec), &accepted.targets, &base);
        (open.is_some() || !own.same(&spec)).then_some(own)
    }
}

/// The content of the state file at the start.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    /// The saved pods by UID. The controller removes the pods that discovery has found.
    pub(crate) pods: SavedPods,
    /// Why the content is not complete. Reported until the agent ends: nothing repairs it.
    pub(crate) problem: Option<String>,
}

impl Restored {
    /// The latest objects of the saved pods.
    pub(crate) fn described(&self) -> Vec<Arc<Pod>> {
        self.pods.values().filter_map(|saved| saved.described.clone()).collect()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The state file in this directory, which is created if it is missing.
    ///
    /// Errors: the directory cannot be made.
    pub(crate) fn in_directory(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).map_err(|error| failed("create", directory, &error))?;
        let path = directory.join(FILE_NAME);
        Ok(Self { path })
    }

    /// Whether there is a file.
    pub(crate) fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Reads the file; one that cannot be parsed is renamed, and reported as a problem.
    ///
    /// Errors: the file cannot be read or renamed, or a newer agent wrote it. Such a file stays: this agent cannot read it,
    /// and the newer agent may come back.
    pub(crate) fn load(&self) -> Result<Restored> {
        let path = &self.path;
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Restored::default()),
            Err(error) => return Err(failed("read", path, &error)),
        };
        if let Ok(FileVersion { version }) = serde_json::from_slice(&text)
            && version > VERSION
        {
            bail!(
                "{}: a newer vscaled wrote this file (version {version}, this one knows up to {VERSION}); it is left alone: \
                 start that vscaled again, or move the file away and lose what it says",
                path.display()
            );
        }
        let reason = match serde_json::from_slice::<Saved>(&text) {
            Ok(Saved { version: VERSION, pods }) => return Ok(Restored { pods, problem: None }),
            Ok(saved) => format!(
                "version {} is not the version {VERSION} this agent writes",
                saved.version
            ),
            Err(error) => error.to_string(),
        };
        let aside = path.with_file_name(format!("{FILE_NAME}.set-aside"));
        fs::rename(path, &aside).map_err(|error| failed("set aside", path, &error))?;
        let problem = format!(
            "the state file was not understood at the start ({reason}) and is now {}; overrides from before are lost, \
             and pods that an earlier agent wrote to go back to what their specs and VPAs say",
            aside.display()
        );
        tracing::error!("{problem}");
        Ok(Restored {
            problem: Some(problem),
            ..Restored::default()
        })
    }

    /// Replaces the whole file.
    ///
    /// Errors: the file cannot be written; the earlier content is then still there.
    pub(crate) fn save(&self, pods: SavedPods) -> Result<()> {
        let content = Saved { version: VERSION, pods };
        // Written piece by piece: the whole text in memory would be larger than the pods themselves.
        files::replace_atomically(&self.path, |file| Ok(serde_json::to_writer(file, &content)?))
            .map_err(|error| failed("write", &self.path, &error))?;
        Ok(())
    }
}

fn failed(action: &str, path: &Path, error: &io::Error) -> Error {
    let path = path.display();
    anyhow!("{action} {path}: {error}; check that stateDir exists, is writable and has free space")
}

/// The state that survives a restart, as the controller keeps it, and the task that saves it.
#[derive(Debug)]
pub(crate) struct Store {
    /// When the next save is due, if the content has changed since the latest.
    pub(crate) due: Option<Instant>,
    /// The pods that it replaces, or removes.
    changes: BTreeMap<PodId, Option<Arc<SavedPod>>>,
    /// The saved pods of an earlier agent, without those that discovery has found.
    pub(crate) restored: Restored,
    /// The files that name the pods this agent has written to.
    pub(crate) limit_files: Arc<LimitFiles>,
    progress: watch::Sender<SaveProgress>,
    task: JoinHandle<()>,
}

/// The newest content, and how far the task has got.
#[derive(Debug, Default)]
struct SaveProgress {
    /// The newest content. Of pods with one UID, the file has the last.
    pods: BTreeMap<PodId, Arc<SavedPod>>,
    /// The number of the newest content.
    latest: u64,
    /// The number of the content that was written last, or failed to be.
    done: u64,
    /// The number of the newest content that a caller waits for.
    awaited: u64,
    /// Why that content is not saved.
    problem: Option<String>,
    /// Whether no further content follows.
    ends: bool,
}

impl SaveProgress {
    /// Whether the next write must not wait for its turn: an operator, a patch or the end of the agent waits for it.
    const fn is_urgent(&self) -> bool {
        self.ends || self.awaited > self.done
    }
}

impl Store {
    pub(crate) fn start(file: StateFile, restored: Restored, limit_files: Arc<LimitFiles>) -> Self {
        let pods = restored.pods.values();
        let progress = watch::Sender::new(SaveProgress {
            pods: pods.map(|saved| (saved.pod.clone(), Arc::clone(saved))).collect(),
            ..SaveProgress::default()
        });
        Self {
            due: None,
            changes: BTreeMap::new(),
            restored,
            limit_files,
            task: tokio::spawn(write(Arc::new(file), progress.clone())),
            progress,
        }
    }

    /// Replaces or removes these pods in the content. The next save is due now, or after [`DESCRIBE_EVERY`] if that can wait:
    /// constant edits of a pod's labels cost the disk no more than this.
    pub(crate) fn replace(&mut self, pods: BTreeMap<PodId, Option<SavedPod>>, can_wait: bool) {
        let at = Instant::now() + if can_wait { DESCRIBE_EVERY } else { Duration::ZERO };
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
        self.changes
            .extend(pods.into_iter().map(|(id, saved)| (id, saved.map(Arc::new))));
    }

    /// Saves the pods beside those that discovery has not found yet, if that is due.
    pub(crate) fn save(&mut self) {
        if self.due.take_if(|at| *at <= Instant::now()).is_none() {
            return;
        }
        let changes = std::mem::take(&mut self.changes);
        self.progress.send_modify(|progress| {
            for (id, saved) in changes {
                progress.pods.remove(&id);
                progress.pods.extend(saved.map(|saved| (id, saved)));
            }
            progress.latest += 1;
        });
    }

    /// Waits until all content is saved, for [`LONGEST_SAVE_WAIT`] at most. Content that [`Self::save`] is still to take counts, too. All
    /// of that is written without a pause.
    ///
    /// Errors: why it is not saved, in a sentence.
    pub(crate) fn saved(&self) -> impl Future<Output = Result<(), String>> + use<> {
        let progress = self.progress.clone();
        let latest = progress.borrow().latest + u64::from(self.due.is_some_and(|at| at <= Instant::now()));
        progress.send_modify(|progress| progress.awaited = latest);
        async move {
            let mut news = progress.subscribe();
            let settled = news.wait_for(|progress| progress.done >= latest);
            if let Ok(Ok(progress)) = timeout(LONGEST_SAVE_WAIT, settled).await {
                return progress.problem.clone().map_or(Ok(()), Err);
            }
            let waited = LONGEST_SAVE_WAIT.as_secs();
            let why = format!("the disk with stateDir has not saved the state within {waited} s");
            note_saved(&progress, latest, false, Some(why.clone()));
            Err(why)
        }
    }

    /// Why the newest content is not saved.
    pub(crate) fn write_problem(&self) -> Option<String> {
        self.progress.borrow().problem.clone()
    }

    /// Why the state may not survive a restart.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        self.restored.problem.clone().into_iter().chain(self.write_problem())
    }

    /// Takes the saved state of this pod.
    pub(crate) fn take_saved(&mut self, id: &PodId) -> Option<SavedPod> {
        self.restored.pods.get(&id.uid).filter(|saved| saved.pod == *id)?;
        self.replace([(id.clone(), None)].into(), false);
        self.restored.pods.remove(&id.uid).map(Arc::unwrap_or_clone)
    }

    /// Forgets the pods that discovery has not found and that do not stay.
    pub(crate) fn retain(&mut self, stays: impl Fn(&PodId) -> bool) {
        let restored = std::mem::take(&mut self.restored.pods).into_iter();
        let (stay, gone): (SavedPods, SavedPods) = restored.partition(|(_, saved)| stays(&saved.pod));
        self.restored.pods = stay;
        gone.into_values()
            .for_each(|saved| self.replace([(saved.pod.clone(), None)].into(), false));
    }

    /// Has the content saved again if the latest save failed.
    pub(crate) fn retry_failed(&mut self) {
        self.due = self.write_problem().map(|_| Instant::now()).or(self.due);
    }

    /// Ends the task after the newest content. Waits for the disk, at most for so long.
    pub(crate) async fn finish(self, patience: Duration) {
        self.progress.send_modify(|progress| progress.ends = true);
        match timeout(patience, self.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the task that saves the state panicked"),
            Err(_) => tracing::warn!("the state file may lack the latest changes: the disk is too slow"),
        }
    }
}

async fn write(file: Arc<StateFile>, progress: watch::Sender<SaveProgress>) {
    let mut news = progress.subscribe();
    let mut rate = RateLimiter::new(WRITES, Instant::now().into_std());
    // Does not fail: this task has a sender.
    while news
        .wait_for(|progress| progress.latest > progress.done || progress.ends)
        .await
        .is_ok()
    {
        // Cancel-safe: neither takes anything.
        tokio::select! {
            () = sleep_until(rate.ready_at().into()) => {}
            _ = news.wait_for(SaveProgress::is_urgent) => {}
        }
        // An urgent write may be out of turn, and then costs others none.
        rate.try_use(Instant::now().into_std());
        let newest = {
            let known = progress.borrow();
            let pods = known.pods.values();
            let by_uid = pods.map(|saved| (saved.pod.uid.clone(), Arc::clone(saved)));
            (known.latest > known.done).then(|| (by_uid.collect::<SavedPods>(), known.latest))
        };
        let Some((content, number)) = newest else { return };
        let file = Arc::clone(&file);
        let saved = tokio::task::spawn_blocking(move || file.save(content)).await;
        let problem = saved
            .map_err(Error::from)
            .flatten()
            .err()
            .map(|error| error.to_string());
        note_saved(&progress, number, true, problem);
    }
}

/// Notes why the content with this number is not saved, if it is not, and whether its write `has_ended`. Logs only a problem that is new:
/// each patch waits for the disk. While the disk is slow to fail again, the latest failure stays the problem.
fn note_saved(progress: &watch::Sender<SaveProgress>, number: u64, has_ended: bool, problem: Option<String>) {
    let mut news = None;
    progress.send_modify(|progress| {
        if progress.done < number && (has_ended || progress.problem.is_none()) {
            news = problem.clone().filter(|_| progress.problem != problem);
            progress.problem = problem;
            progress.done = if has_ended { number } else { progress.done };
        }
    });
    if let Some(problem) = news {
        tracing::error!(problem, "the state is not saved and would not survive a restart");
    }
}

#[cfg(any(test, fuzzing))]
#[path = "../../fuzz/inputs/state.rs"]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
