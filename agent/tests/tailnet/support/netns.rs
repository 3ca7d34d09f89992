use std::process::Command;

use nix::sched::{CloneFlags, unshare};

/// Runs a test in a network namespace with loopback and one interface with [`super::MACHINE`], on a runtime whose threads are
/// all in it. The namespace goes with the last process in it.
pub fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    unshare(CloneFlags::CLONE_NEWNET).expect("these tests make network namespaces: run them as root");
    for args in [
        "link set lo up",
        "link add machine type veth peer name wire",
        "addr add 10.99.0.1/24 dev machine",
        "link set machine up",
        "link set wire up",
    ] {
        let status = Command::new("ip")
            .args(args.split(' '))
            .status()
            .expect("iproute2 is installed");
        assert!(status.success(), "ip {args}");
    }
    // Threads that are started by this one are in its namespace; processes as well.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test());
    runtime.shutdown_background();
}
