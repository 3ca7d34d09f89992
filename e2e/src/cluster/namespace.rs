//! One namespace per test, and what is in it when the test fails.

use anyhow::{Context, Result};

use super::Cluster;

/// A namespace of a test. Deleted when dropped; when the test panics, its objects, events and Pod logs are kept first.
#[derive(Debug)]
pub struct TestNamespace<'a> {
    cluster: &'a Cluster,
    name: String,
}

impl TestNamespace<'_> {
    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl AsRef<str> for TestNamespace<'_> {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

impl std::fmt::Display for TestNamespace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// A valid namespace name out of a test's name: lower case, `-` for everything else, 50 characters at most.
fn dns_label(test: &str) -> String {
    let label: String = test
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    let label = label.trim_matches('-');
    label[..label.len().min(50)].trim_end_matches('-').to_owned()
}

impl Cluster {
    /// Makes the namespace of the test called `test`.
    ///
    /// # Errors
    /// When it cannot be made, for instance because it exists.
    pub fn namespace(&self, test: &str) -> Result<TestNamespace<'_>> {
        let name = dns_label(test);
        self.kubectl(&["create", "namespace", &name])?
            .success()
            .with_context(|| format!("creating namespace {name}"))?;
        Ok(TestNamespace { cluster: self, name })
    }

    /// Writes the objects, events and Pod logs of `namespace` to `target/e2e-logs/LABEL/`, beside the logs of the cluster's programs.
    ///
    /// # Errors
    /// When the folder cannot be written. What cannot be read is left out.
    pub fn keep_namespace(&self, namespace: &str, label: &str) -> Result<()> {
        let folder = self.keep_logs(label)?;
        let write = |file: &str, args: &[&str]| -> Result<()> {
            if let Ok(done) = self.kubectl(args) {
                std::fs::write(folder.join(file), format!("{}{}", done.stdout, done.stderr))?;
            }
            Ok(())
        };
        write(
            "objects.yaml",
            &[
                "get",
                "pods,deployments,services,endpointslices,networkpolicies,configmaps,jobs",
                "-n",
                namespace,
                "-o",
                "yaml",
            ],
        )?;
        write("events.txt", &["events", "-n", namespace])?;
        let pods = self.kubectl(&["get", "pods", "-n", namespace, "-o", "name"])?;
        for pod in pods.stdout.lines() {
            let file = format!("{}.pod.log", pod.trim_start_matches("pod/"));
            write(
                &file,
                &[
                    "logs",
                    "-n",
                    namespace,
                    pod,
                    "--all-containers",
                    "--prefix",
                    "--tail=2000",
                ],
            )?;
        }
        Ok(())
    }
}

impl Drop for TestNamespace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self
                .cluster
                .keep_namespace(&self.name, &format!("{}--{}", self.cluster.name(), self.name));
        }
        let _ = self
            .cluster
            .kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

#[cfg(test)]
mod tests {
    use super::dns_label;

    #[test]
    fn labels_are_valid() {
        assert_eq!(
            dns_label("policies::refuses_A_wrong_port_"),
            "policies--refuses-a-wrong-port"
        );
        assert_eq!(dns_label(&"x".repeat(80)).len(), 50);
    }
}
