//! The box: one network, mount and PID namespace in which a whole cluster runs, and which takes everything with it when it ends.
//!
//! Three kinds of process make one, all of them the program `tailnet-box`:
//!
//! * the supervisor, in the host's namespaces: owns the box, cleans up after it, and starts programs on the host's side,
//! * the holder: has the box's network and mount namespace and is the parent of
//! * the init, PID 1 of the box: starts every program inside.
//!
//! The box ends when the supervisor is told so, when the process that owns it ends (its end of a pipe closes), or when any of the three is killed.

pub mod cgroups;
pub mod client;
pub mod holder;
pub mod init;
pub mod leftovers;
pub mod protocol;
pub mod server;
pub mod slot;
pub mod supervisor;
pub mod sysctls;

/// File names inside a box's folder.
pub mod files {
    /// Socket of the box's PID 1.
    pub const INIT_SOCKET: &str = "box.sock";
    /// Socket of the supervisor.
    pub const HOST_SOCKET: &str = "host.sock";
    /// Logs of every program: `logs/NAME.log`.
    pub const LOGS: &str = "logs";
    /// What is mounted over the machine's own paths.
    pub const OVERLAY: &str = "fs";
}
