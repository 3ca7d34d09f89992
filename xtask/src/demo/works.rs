//! What works: a query, a call by the original name, and that a stranger gets neither.

use anyhow::{Context, Result, ensure};
use tailnet_e2e::cluster::Cluster;
use tailnet_e2e::site::{self, postgres};
use tailnet_e2e::wait_for;

use super::account::{command, says};
use super::{CLIENT, OPERATOR, PATIENCE, STRANGER, TEAM, kubectl, manifests};

/// Name of the database's Service, as Pods write it.
const DATABASE: &str = "remote-db.tailnet-system.svc";

/// Starts a client Pod in both namespaces.
pub fn clients(cluster: &Cluster, site_ca: &str) -> Result<()> {
    let both = [TEAM, STRANGER].map(|namespace| [manifests::site_ca(namespace, site_ca), manifests::client(namespace)]);
    cluster.apply(&manifests::list(&both.concat()))?;
    for namespace in [TEAM, STRANGER] {
        kubectl(
            cluster,
            &[
                "-n",
                namespace,
                "wait",
                &format!("pod/{CLIENT}"),
                "--for=condition=Ready",
                "--timeout=60s",
            ],
        )?;
    }
    Ok(())
}

fn psql() -> Vec<&'static str> {
    vec![
        "psql",
        "-h",
        DATABASE,
        "-U",
        postgres::USER,
        "-d",
        postgres::DATABASE,
        "-At",
        "-c",
        postgres::QUERY.0,
    ]
}

fn curl(url: &str) -> Vec<&str> {
    vec![
        "curl",
        "-sS",
        "--max-time",
        "10",
        "--cacert",
        "/etc/site-ca/ca.crt",
        url,
    ]
}

fn show(namespace: &str, argv: &[&str]) {
    let argv = argv
        .iter()
        .map(|word| {
            if word.contains(' ') {
                format!("\"{word}\"")
            } else {
                (*word).to_owned()
            }
        })
        .collect::<Vec<_>>();
    command(&format!("kubectl -n {namespace} exec {CLIENT} -- {}", argv.join(" ")));
}

/// The query, over Service, agent, tailnet and router.
pub fn query(cluster: &Cluster) -> Result<()> {
    let argv = psql();
    show(TEAM, &argv);
    let answer = cluster.pod_exec(TEAM, CLIENT, &argv)?;
    says(&answer);
    ensure!(
        answer == postgres::QUERY.1,
        "the database answered {answer:?} instead of {:?}",
        postgres::QUERY.1
    );
    let from = "SELECT inet_client_addr()";
    let mut argv = psql();
    argv.pop();
    argv.push(from);
    show(TEAM, &argv);
    let address = cluster.pod_exec(TEAM, CLIENT, &argv)?;
    says(&address);
    // The client's own address or the node's would mean that something else than the tailnet carried the query.
    ensure!(
        address.starts_with("192.0.2."),
        "the database saw the client {address}, which is not the site's router"
    );
    says("that is the site's router: the query came through the tailnet");
    Ok(())
}

/// The call by the original name.
pub fn https(cluster: &Cluster) -> Result<()> {
    let url = format!("https://{}/orders", site::HTTPS_NAME);
    // The DNS change has to reach CoreDNS and the resolver first.
    let address = wait_for("a Pod of team-a resolves the alias", PATIENCE, || {
        cluster.pod_exec(TEAM, CLIENT, &["getent", "ahostsv4", site::HTTPS_NAME])
    })?;
    let address = address.split_whitespace().next().unwrap_or_default().to_owned();
    let service = cluster.kubectl(&[
        "-n",
        OPERATOR,
        "get",
        "service",
        "remote-api",
        "-o",
        "jsonpath={.spec.clusterIP}",
    ])?;
    ensure!(
        service.success()? == address,
        "{} resolves to {address}, not to the Service remote-api",
        site::HTTPS_NAME
    );
    says(&format!("{} is {address}: the Service remote-api", site::HTTPS_NAME));
    let argv = curl(&url);
    show(TEAM, &argv);
    let answer = cluster.pod_exec(TEAM, CLIENT, &argv)?;
    says(&answer);
    let json: serde_json::Value = serde_json::from_str(&answer).context("the API answers JSON")?;
    for field in ["host", "sni"] {
        ensure!(
            json[field] == site::HTTPS_NAME,
            "the API saw {field} {} instead of {}",
            json[field],
            site::HTTPS_NAME
        );
    }
    says("SNI, certificate and Host header are the original ones");
    Ok(())
}

/// The same from a namespace that is not in consumerNamespaces.
pub fn stranger(cluster: &Cluster) -> Result<()> {
    let argv = psql();
    show(STRANGER, &argv);
    let done = cluster.pod_exec_output(STRANGER, CLIENT, &argv)?;
    let said = done.failure().context("the query from team-b was answered")?;
    says(said);
    ensure!(
        said.contains(DATABASE) && said.contains("failed"),
        "psql failed for another reason than a refused connection: {said}"
    );
    says("refused by the NetworkPolicy that consumerNamespaces asks for");
    Ok(())
}
