//! Ways into the API server: clients and kubeconfigs of the admin, of other users, and of ServiceAccounts.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use super::{Cluster, control_plane};
use crate::pki::{self, Authority, Subject};
use crate::{runtime, wait};

async fn config(path: PathBuf) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // A proxy of the machine has no way into the box.
    config.proxy_url = None;
    Ok(config)
}

impl Cluster {
    /// The cluster admin's kubeconfig file; works inside the box and on the host.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir().join("admin.kubeconfig")
    }

    /// A client of the cluster admin. Belongs to the caller's tokio runtime (to the harness's own when there is none): ask for a new one in every test.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub fn client(&self) -> Result<Client> {
        Self::client_of(self.kubeconfig())
    }

    /// A client of the user of a kubeconfig file; see [`Cluster::client`].
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub fn client_of(kubeconfig: PathBuf) -> Result<Client> {
        let config = runtime::block_on(config(kubeconfig))??;
        let runtime = runtime::handle()?;
        let _inside = tokio::runtime::Handle::try_current().is_err().then(|| runtime.enter());
        Client::try_from(config).context("cannot make a client")
    }

    /// A kubeconfig of a user called `user` in `group`, who may do what RBAC gives them: nothing at first.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn user_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<PathBuf> {
        let authority = Authority::load(&self.dir().join("pki"), control_plane::AUTHORITY)?;
        let file = format!("user-{user}");
        let pair = authority.issue(
            &file,
            &Subject {
                common_name: user,
                organisation: group,
                ..Subject::default()
            },
        )?;
        let path = self.dir().join(format!("{file}.kubeconfig"));
        pki::write_kubeconfig(&path, &control_plane::server_url(self.state()), authority.pem(), &pair)?;
        Ok(path)
    }

    /// A kubeconfig of an existing ServiceAccount, valid for a day: runs a controller with exactly the rights its chart gives it.
    ///
    /// # Errors
    /// When the ServiceAccount does not exist.
    pub fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let client = self.harness_client()?;
        let (of_namespace, of_name) = (namespace.to_owned(), name.to_owned());
        let token = runtime::block_on(async move {
            let accounts: Api<ServiceAccount> = Api::namespaced(client, &of_namespace);
            let spec = TokenRequestSpec {
                audiences: Vec::new(),
                expiration_seconds: Some(86400),
                ..TokenRequestSpec::default()
            };
            let request = TokenRequest {
                spec,
                ..TokenRequest::default()
            };
            let made: TokenRequest = accounts
                .create_token_request(&of_name, &PostParams::default(), &request)
                .await?;
            anyhow::Ok(made.status.map(|status| status.token))
        })?
        .with_context(|| format!("no token for ServiceAccount {namespace}/{name}"))?
        .context("the API server made no token")?;
        let path = self.dir().join(format!("sa-{namespace}-{name}.kubeconfig"));
        let authority = Authority::load(&self.dir().join("pki"), control_plane::AUTHORITY)?;
        pki::write_token_kubeconfig(
            &path,
            &control_plane::server_url(self.state()),
            authority.pem(),
            &token,
            namespace,
        )?;
        Ok(path)
    }

    /// A client on the harness's own runtime.
    pub(super) fn harness_client(&self) -> Result<Client> {
        let path = self.kubeconfig();
        runtime::block_on(async move { Client::try_from(config(path).await?).context("cannot make a client") })?
    }

    /// Waits until the API server says it is ready.
    ///
    /// # Errors
    /// When it does not within `deadline`.
    pub fn wait_api_ready(&self, deadline: Duration) -> Result<()> {
        let client = self.harness_client()?;
        runtime::block_on(async move {
            wait::wait_for_async("the API server is ready", deadline, || {
                let client = client.clone();
                async move {
                    let request = http::Request::get("/readyz")
                        .body(Vec::new())
                        .map_err(|error| error.to_string())?;
                    client
                        .request_text(request)
                        .await
                        .map(drop)
                        .map_err(|error| error.to_string())
                }
            })
            .await
        })?
    }
}
