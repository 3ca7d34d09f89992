//! What the `restricted` Pod Security Standard leaves: no root, no capability, no writable file system.

use std::process::Command;

use crate::support::*;

const A: Target = Target {
    name: "a",
    listen_port: 10001,
    address: ROUTED,
    port: ECHO,
};

#[test]
fn runs_without_any_privilege() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let (agent, dir) = Agent::command(&world, &[A], &world.headscale.key("tag:egress"));
        // Readable by the other user, as a mounted Secret with fsGroup is.
        let open = Command::new("chmod")
            .args(["-R", "a+rX"])
            .arg(world.dir.path())
            .status()
            .unwrap();
        assert!(open.success());
        // Every mount read-only but /dev/shm, which a container has writable.
        let script = r#"set -e
            mount --make-rprivate /
            mount -t tmpfs tmpfs /dev/shm
            for dir in $(awk '$2 != "/dev/shm" {print $2}' /proc/mounts | grep -v '\\' | sort -u); do
                mount -o remount,bind,ro "$dir" 2>/dev/null || true
            done
            ! touch /tmp/writable /var/tmp/writable 2>/dev/null
            exec setpriv --reuid 65532 --regid 65532 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs "$0""#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(agent.get_program());
        for (key, value) in agent.get_envs() {
            if let Some(value) = value {
                command.env(key, value);
            }
        }
        let agent = Agent {
            process: Kept::spawn("agent", world.dir.path(), command),
            dir,
        };
        agent.ready().await;
        echo(&mut connect(10001).await, b"carried").await.unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", agent.process.pid())).unwrap();
        assert!(status.contains("Uid:\t65532\t65532"), "{status}");
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
        let left = std::fs::read_dir(format!("/proc/{}/root/dev/shm", agent.process.pid()))
            .unwrap()
            .count();
        assert_eq!(left, 0, "the directory of the start is gone");
    });
}
