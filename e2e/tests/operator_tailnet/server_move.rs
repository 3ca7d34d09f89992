//! `spec.server` changes: to another name of the same Headscale, and to another Headscale.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use serde_json::json;
use tailnet_e2e::wait_for;
use tailnet_headscale::Class;

use crate::bed::{Bed, PATIENCE, SERVER, join};
use crate::second_headscale::SecondHeadscale;

#[test]
fn the_same_headscale_by_another_url() -> Result<()> {
    let bed = Bed::new("tailnet_renamed_server")?;
    bed.bootstrap(&bed.own_key()?)?;
    bed.tailnet(|_| {})?;
    bed.egress("moved")?;
    let operator = bed.operator(&[])?;
    bed.ready()?;
    let (id, key) = wait_for("the egress has its key", PATIENCE, || bed.authkey("moved"))?;
    let working = bed.working_key()?;
    let node = join(&bed, "node-of-moved", &key)?;
    let joined = wait_for("the node is there", PATIENCE, || {
        let nodes = bed.nodes("moved")?;
        ensure!(nodes.len() == 1 && nodes[0].online, "{nodes:?}");
        Ok::<_, anyhow::Error>(nodes)
    })?;

    // By its address, and back by its name: each time everything stays and is written down under the new URL.
    for server in [bed.headscale.host_url(), SERVER.to_owned()] {
        bed.tailnet(|spec| spec["server"] = json!(server))?;
        bed.ready()?;
        wait_for(&format!("keys and ledger are of {server}"), PATIENCE, || {
            for secret in [
                format!("tailnet-{}-apikey", bed.tailnet),
                "tailnet-egress-moved-authkey".to_owned(),
            ] {
                let stored = bed.get(&["secret", &secret])?;
                let of = &stored["metadata"]["annotations"]["tsunaro.io/key-server"];
                ensure!(*of == json!(server), "{secret} is of {of}");
            }
            let entries = bed.entries()?;
            ensure!(
                entries.len() == 2
                    && entries
                        .iter()
                        .all(|e| e["server"] == json!(server) && e["stage"] == "Active"),
                "{entries:?}"
            );
            Ok::<_, anyhow::Error>(())
        })?;
        // Time enough for a clean-up that would take the keys for another server's.
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(bed.working_key()?, working, "another working key for {server}");
        assert_eq!(
            bed.authkey("moved")?,
            (id.clone(), key.clone()),
            "another key for {server}"
        );
        assert_eq!(bed.new_api_keys()?.len(), 2, "the test's own and the working key");
        let keys = bed.preauth_keys("moved")?;
        assert!(keys.len() == 1 && !keys[0].expired(Timestamp::now()), "{keys:?}");
        let nodes = bed.nodes("moved")?;
        assert!(
            nodes.len() == 1 && nodes[0].online && nodes[0].id == joined[0].id,
            "{nodes:?}"
        );
    }
    operator.terminate(Duration::from_secs(10))?;
    drop(node);
    bed.no_key_is_told(&[&key, &working.1])
}

#[test]
fn really_another_headscale() -> Result<()> {
    let bed = Bed::new("tailnet_other_server")?;
    let other = SecondHeadscale::start(&bed)?;
    bed.bootstrap(&bed.own_key()?)?;
    bed.tailnet(|_| {})?;
    bed.egress("mover")?;
    let operator = bed.operator(&[])?;
    bed.ready()?;
    let (_, key) = wait_for("the egress has its key", PATIENCE, || bed.authkey("mover"))?;
    let (prefix, working) = bed.working_key()?;

    // Without a key that works there the former server is not left: its keys stay as they are.
    bed.tailnet(|spec| spec["server"] = json!(other.url))?;
    bed.expect("APIKeyReady", "False", "APIKeyRefused")?;
    assert_eq!(bed.working_key()?.0, prefix);
    let keys = bed.preauth_keys("mover")?;
    assert!(keys.len() == 1 && !keys[0].expired(Timestamp::now()), "{keys:?}");

    bed.bootstrap(&other.key)?;
    bed.ready()?;
    wait_for("the egress has a key of the other server", PATIENCE, || {
        let (id, now) = bed.authkey("mover")?;
        ensure!(now != key, "still the old one");
        let there = other.live_keys(&bed, "mover")?;
        ensure!(there.len() == 1 && there[0].id.as_str() == id, "Secret {id}; {there:?}");
        Ok::<_, anyhow::Error>(())
    })?;
    let (moved, _) = bed.working_key()?;
    assert_ne!(moved, prefix);
    let listed = bed.block(other.admin.api_keys())?;
    assert!(listed.iter().any(|k| k.short_prefix() == moved), "{listed:?}");

    // Nothing that we made opens the former server any more; what others made there does.
    wait_for("the keys of the former server are expired", PATIENCE, || {
        let keys = bed.preauth_keys("mover")?;
        let live = keys.iter().filter(|k| !k.expired(Timestamp::now())).count();
        ensure!(live == 0, "{keys:?}");
        let api = bed.new_api_keys()?;
        ensure!(api.len() == 1 && api[0].short_prefix() != prefix, "{api:?}");
        let entries = bed.entries()?;
        ensure!(
            entries.len() == 2 && entries.iter().all(|e| e["server"] == json!(other.url)),
            "{entries:?}"
        );
        Ok::<_, anyhow::Error>(())
    })?;
    let tried = bed.block(bed.headscale.client_with_key(&working)?.check_key());
    assert!(
        tried.as_ref().is_err_and(|error| error.class() == Class::Unauthorized),
        "the former working key: {tried:?}"
    );
    operator.terminate(Duration::from_secs(10))?;
    bed.no_key_is_told(&[&key, &working, &other.key])
}
