//! Connects the terminal, the keys and the agent. The terminal gets its earlier state back, also after an error or a panic.

use std::io::{self, stdout};
use std::panic;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::{FutureExt as _, select_all};
use futures::stream::{self, StreamExt as _};
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::render::draw;
use super::state::Node;
use super::view::View;
use crate::cli::Failure;
use crate::control::{Client, ClientError};

const UNUSABLE: &str = "cannot use the terminal; `vscalectl top | cat` prints a table";

/// Shows the node until a key or a signal ends it.
///
/// Errors: [`Failure`] when the agent goes or the terminal cannot be used.
pub(super) async fn show(client: &mut Client, interval: Duration, mut view: View) -> Result<(), Failure> {
    let mut node = Node::default();
    let mut watch = client.watch().await?;
    node.read(client.get_with_usage().await?);
    let changes = client.history(String::new()).await?.changes;
    node.add_latest(changes, client.oom_list(String::new()).await?.kills);
    let mut replies = pin!(stream::unfold(client, |client| async move {
        tokio::time::sleep(interval).await;
        Some((client.get_with_usage().await, client))
    }));
    let mut signals = ends().context(UNUSABLE)?;
    let mut signalled = select_all(signals.iter_mut().map(|signal| signal.recv().boxed_local()));
    let mut screen = Screen::open().context(UNUSABLE)?;
    let mut keys = read_keys();
    loop {
        let mut page = 1;
        let drawn = screen.0.draw(|frame| page = draw(frame, &node, &view));
        drawn.context(UNUSABLE)?;
        // Cancel-safe: an input that comes second stays for the next turn.
        tokio::select! {
            event = keys.recv() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    if !view.press(key, &node, page) {
                        return Ok(());
                    }
                }
                Some(Ok(_)) => {}
                // The terminal has gone.
                Some(Err(_)) | None => return Ok(()),
            },
            Some(reply) = replies.next() => match reply {
                Ok(reply) => node.read(reply),
                // The agent is busy, and answers the next time.
                Err(ClientError::Answer(_)) => {}
                Err(error) => return Err(error.into()),
            },
            change = watch.next() => {
                node.add(&change?);
                // One screen shows all changes that have arrived.
                while let Some(change) = watch.next().now_or_never() {
                    node.add(&change?);
                }
            }
            _ = &mut signalled => return Ok(()),
        }
    }
}

/// The signals that end the screen.
fn ends() -> io::Result<Vec<Signal>> {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ];
    kinds.into_iter().map(signal).collect()
}

/// Reads keys and changes of the terminal's size on a thread, which ends with the process: nothing interrupts a thread
/// that waits for a key.
fn read_keys() -> mpsc::Receiver<io::Result<Event>> {
    let (events, received) = mpsc::channel(64);
    std::thread::spawn(move || while events.blocking_send(event::read()).is_ok() {});
    received
}

/// The terminal while the screen is on it.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| restore())?;
        // ratatui's own hook leaves the cursor hidden.
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            hook(info);
        }));
        Ok(Self(terminal))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Puts the terminal back. A terminal that has gone needs nothing.
fn restore() {
    ratatui::try_restore().unwrap_or_default();
    execute!(stdout(), Show).unwrap_or_default();
}
