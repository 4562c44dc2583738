//! The terminal, the keys and the agent's answers. The terminal is as it was before, however this ends.

use std::io::{self, stdout};
use std::panic;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::execute;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, Sender};

use super::render::draw;
use super::state::Node;
use super::view::View;
use crate::cli::Failure;
use crate::control::proto::{Change, GetReply};
use crate::control::{Client, ClientError, Watch};

enum Input {
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    Reply(Box<GetReply>),
    Change(Box<Change>),
    /// A signal came, or the terminal is gone.
    End,
    Lost(ClientError),
}

/// Shows the node until a key or a signal ends it.
///
/// Errors: [`Failure`] when the agent goes or the terminal cannot be used.
pub(super) async fn show(client: &mut Client, interval: Duration, mut view: View) -> Result<(), Failure> {
    let mut node = Node::default();
    let watch = client.watch().await?;
    node.read(client.get_with_usage().await?);
    for change in &client.history(String::new()).await?.changes {
        node.add(change);
    }
    for kill in client.oom_list(String::new()).await?.kills {
        node.add(&Change {
            kill: Some(kill),
            ..Change::default()
        });
    }
    let (inputs, mut received) = mpsc::channel(64);
    tokio::spawn(poll(client.clone(), interval, inputs.clone()));
    tokio::spawn(follow(watch, inputs.clone()));
    for kind in [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ] {
        let (mut signals, inputs) = (signal(kind).context(UNUSABLE)?, inputs.clone());
        tokio::spawn(async move {
            signals.recv().await;
            inputs.send(Input::End).await
        });
    }
    let mut screen = Screen::open().context(UNUSABLE)?;
    // It ends with the process: nothing interrupts a thread that waits for a key.
    std::thread::spawn(move || read_keys(&inputs));
    loop {
        let mut page = 1;
        screen
            .0
            .draw(|frame| page = draw(frame, &node, &view))
            .context(UNUSABLE)?;
        let mut next = received.recv().await;
        while let Some(input) = next {
            match input {
                Input::Key(key) if !view.press(key, &node, page) => return Ok(()),
                Input::Key(_) | Input::Resized => {}
                Input::Reply(reply) => node.read(*reply),
                Input::Change(change) => node.add(&change),
                Input::End => return Ok(()),
                Input::Lost(error) => return Err(error.into()),
            }
            next = received.try_recv().ok();
        }
    }
}

const UNUSABLE: &str = "cannot use the terminal; `vscalectl top | cat` prints a table";

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

/// Puts the terminal back. A terminal that is gone needs nothing.
fn restore() {
    ratatui::try_restore().unwrap_or_default();
    execute!(stdout(), Show).unwrap_or_default();
}

/// Reads what the node uses again and again.
async fn poll(mut client: Client, interval: Duration, inputs: Sender<Input>) {
    loop {
        tokio::time::sleep(interval).await;
        let input = match client.get_with_usage().await {
            Ok(reply) => Input::Reply(Box::new(reply)),
            // It is busy, and says so.
            Err(ClientError::Answer(_)) => continue,
            Err(error) => Input::Lost(error),
        };
        if inputs.send(input).await.is_err() {
            return;
        }
    }
}

async fn follow(mut watch: Watch, inputs: Sender<Input>) {
    loop {
        let input = match watch.next().await {
            Ok(change) => Input::Change(Box::new(change)),
            Err(error) => Input::Lost(error),
        };
        if matches!(input, Input::Lost(_)) | inputs.send(input).await.is_err() {
            return;
        }
    }
}

/// Blocks.
fn read_keys(inputs: &Sender<Input>) {
    loop {
        let input = match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Input::Key(key),
            Ok(Event::Resize(..)) => Input::Resized,
            Ok(_) => continue,
            Err(_) => Input::End,
        };
        let ends = matches!(input, Input::End);
        if inputs.blocking_send(input).is_err() || ends {
            return;
        }
    }
}
