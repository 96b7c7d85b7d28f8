//! The places where the processes of a trial run: this machine, for now.
//!
//! A driver says what to start, and the lab speaks with it through its standard input and output
//! alone. A [`Placement`] is therefore all that would have to be added to run a role somewhere
//! else, such as by `ssh` or in a Slurm allocation: drivers and the trial stay as they are.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{getegid, kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};

use crate::descendants::{Descendants, MARK};
use crate::driver::{Invocation, Role};
use crate::leftovers::Folder;
use crate::usage::{self, Inherited, Usage};

/// A place for the roles of one trial. When it is dropped, no process of the trial is left.
pub trait Placement {
    /// Starts the process of a role.
    ///
    /// # Errors
    /// It could not be started.
    fn spawn(&mut self, role: &Role, invocation: &Invocation, needs: Needs) -> io::Result<Agent>;
}

/// The properties that the process of a role must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// True if it takes commands, and so has a standard input.
    pub commands: bool,
    /// True if its peak memory is measured, for which starting it may take longer.
    pub peak_memory: bool,
}

/// A process of a trial that is under way.
pub struct Agent {
    /// Its standard input; `None` if it takes no commands.
    pub stdin: Option<Box<dyn Write + Send>>,
    /// Its standard output.
    pub stdout: Box<dyn Read + Send>,
    /// Its standard error.
    pub stderr: Box<dyn Read + Send>,
    /// Returns when the process has exited, which leaves it to be [reaped](Process::reap).
    pub exit: Box<dyn FnOnce() + Send>,
    /// The process itself. Dropped, it is ended.
    pub process: Box<dyn Process>,
}

/// The handle of an [`Agent`]'s process.
pub trait Process {
    /// Ends it with everything that it started.
    fn kill(&self);

    /// Waits until it has exited; returns how it did, and what it used of its machine.
    ///
    /// # Errors
    /// It cannot be waited for, or was reaped before.
    fn reap(&mut self) -> io::Result<(ExitStatus, Usage)>;
}

/// This machine.
///
/// Whatever happens, none of a trial's processes is left behind, in its group or out of it. For
/// that, this process becomes a subreaper (`PR_SET_CHILD_SUBREAPER`), and should start no other
/// programs in groups of their own while a trial runs.
pub struct Local {
    processes: Descendants,
    /// The temporary folder of all roles, which is removed when their processes are gone; `None`
    /// where there can be none.
    folder: Option<Folder>,
}

impl Local {
    /// A place for one trial.
    ///
    /// # Errors
    /// This process cannot be a subreaper.
    pub fn new() -> io::Result<Local> {
        Ok(Local {
            processes: Descendants::expected()?,
            folder: Folder::new(&std::env::temp_dir()).ok(),
        })
    }
}

impl Local {
    fn command(&self, invocation: &Invocation, needs: Needs) -> Command {
        let mut command = Command::new(&invocation.program);
        let stdin = match needs.commands {
            true => Stdio::piped(),
            false => Stdio::null(),
        };
        if let Some(folder) = &self.folder {
            command.env("TMPDIR", folder.path());
        }
        command
            .args(&invocation.arguments)
            .envs(&invocation.environment)
            .env(MARK, self.processes.mark())
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(directory) = &invocation.directory {
            command.current_dir(directory);
        }
        command
    }

    /// Starts a process that inherits little memory, if that is possible; returns how much, too.
    fn fork(
        &self,
        invocation: &Invocation,
        needs: Needs,
        inherited: Inherited,
    ) -> io::Result<(Child, Option<u64>)> {
        // The group does not change, but where one is given the standard library forks, in place
        // of `posix_spawn(3)`.
        let mut command = self.command(invocation, needs);
        if let Ok(child) = command.gid(getegid().as_raw()).spawn() {
            return Ok((child, Some(inherited.by_fork)));
        }
        // Setting a group is refused in a user namespace that does not have it.
        let child = self.command(invocation, needs).spawn()?;
        Ok((child, Some(inherited.by_posix_spawn)))
    }
}

impl Placement for Local {
    fn spawn(&mut self, _role: &Role, invocation: &Invocation, needs: Needs) -> io::Result<Agent> {
        // Read before the child exists.
        let inherited = needs.peak_memory.then(Inherited::now).flatten();
        let (mut child, inherited) = match inherited {
            None => (self.command(invocation, needs).spawn()?, None),
            Some(inherited) => self.fork(invocation, needs, inherited)?,
        };
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let id = Pid::from_child(&child);
        self.processes.led_by(id);
        let group = Group {
            child: Some(child),
            id,
            inherited,
        };
        let process = pidfd_open(id, PidfdFlags::empty())?;
        let exit = move || {
            while let Err(Errno::INTR) = poll(&mut [PollFd::new(&process, PollFlags::IN)], None) {}
        };
        let piped = || io::Error::other("its outputs are not piped");
        Ok(Agent {
            stdin: stdin.map(|stdin| Box::new(stdin) as _),
            stdout: Box::new(stdout.ok_or_else(piped)?),
            stderr: Box::new(stderr.ok_or_else(piped)?),
            exit: Box::new(exit),
            process: Box::new(group),
        })
    }
}

/// A child in a process group of its own, ended with everything in it.
struct Group {
    /// `None` once it is reaped.
    child: Option<Child>,
    id: Pid,
    /// The peak memory that it inherited, in bytes; `None` if it is not measured.
    inherited: Option<u64>,
}

impl Process for Group {
    /// The child is left unreaped, so that the group's id cannot pass to another process in
    /// between.
    fn kill(&self) {
        let _ = kill_process_group(self.id, Signal::KILL);
    }

    fn reap(&mut self) -> io::Result<(ExitStatus, Usage)> {
        let child = self.child.take().ok_or(io::ErrorKind::InvalidInput)?;
        usage::reap(child, self.inherited)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            let _ = kill_process_group(self.id, Signal::KILL);
            let _ = usage::reap(child, None);
        }
    }
}
