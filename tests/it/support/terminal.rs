//! A program on a pseudo-terminal whose other end draws a screen of text.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

/// The longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program on its own terminal. Dropping the value kills the program.
pub(crate) struct Terminal {
    child: Child,
    keys: File,
    /// Keeps the terminal open, so that a test can read the screen after the program has ended.
    program_end: File,
    screen: Arc<Mutex<vt100::Parser>>,
    _reader: JoinHandle<()>,
}

impl Terminal {
    /// Runs a command with a terminal of this size as its controlling terminal.
    pub(crate) fn run(command: &Command, rows: u16, columns: u16) -> Self {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
        let child = Command::new("setsid")
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args())
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave.try_clone().unwrap())
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(
            rows.try_into().unwrap(),
            columns.try_into().unwrap(),
            0,
        )));
        let keys = File::from(master);
        let reader = std::thread::spawn({
            let (mut output, screen) = (keys.try_clone().unwrap(), Arc::clone(&screen));
            move || {
                let mut part = [0; 4096];
                while let Ok(read @ 1..) = output.read(&mut part) {
                    screen.lock().unwrap().process(&part[..read]);
                }
            }
        });
        Self {
            child,
            keys,
            program_end: slave.into(),
            screen,
            _reader: reader,
        }
    }

    /// Types keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Gives the terminal another width.
    pub(crate) fn set_columns(&self, columns: u16) {
        let terminal = self.program_end.try_clone().unwrap();
        let mut stty = Command::new("stty");
        stty.args(["columns", &columns.to_string()]).stdin(terminal);
        assert!(stty.status().unwrap().success());
    }

    /// The current screen.
    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits for a screen that meets the condition, and returns it.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain for {what}:\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for a screen with all these words, and returns it.
    pub(crate) fn shows(&self, words: &[&str]) -> String {
        self.until(&format!("{words:?}"), |text| {
            words.iter().all(|word| text.contains(word))
        })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Waits until the program has ended.
    pub(crate) fn ends(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "does not end:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the terminal is ready for a shell: primary screen, visible cursor, line mode and echo.
    pub(crate) fn is_restored(&self) {
        let restored = |_: &str| {
            let parser = self.screen.lock().unwrap();
            !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
        };
        let restored_outside = |text: &str| {
            let flags = tcgetattr(&self.program_end).unwrap().local_flags;
            restored(text) && flags.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG)
        };
        self.until("the terminal to be restored", restored_outside);
    }

    /// Whether a program uses the alternate screen.
    pub(crate) fn is_taken(&self) -> bool {
        self.screen.lock().unwrap().screen().alternate_screen()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program may have ended already.
        self.child.kill().unwrap_or_default();
        self.child.wait().map_or_else(|error| eprintln!("{error}"), drop);
    }
}
