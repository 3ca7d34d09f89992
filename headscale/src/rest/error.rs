//! What can go wrong with a call, and what a caller may do about it.

use std::time::Duration;

use super::trust::TrustError;

/// What an [`Error`] means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The key was refused. Headscale answers the same when its database hiccups: confirm with a second call.
    Unauthorized,
    /// The thing asked for is not there.
    Absent,
    /// The same request will be refused again: somebody has to change something.
    Permanent,
    /// Ask again later.
    Transient,
    /// The server's certificate does not verify, or it does not speak TLS.
    Tls,
    /// The name does not resolve.
    Dns,
    /// Nothing listens there, or no answer came to the connection attempt.
    Unreachable,
    /// Something answered, but not a Headscale.
    NotHeadscale,
}

/// A failed call. `call` is the method and path without query, e.g. `GET /api/v1/node`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A CA bundle is broken.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The HTTP client could not be made.
    #[error("the HTTP client cannot be set up: {0}")]
    Setup(String),
    /// The key has characters that no HTTP header may carry, so it cannot be one of Headscale's.
    #[error("the API key is empty or has characters that no Headscale key has (only printable ASCII without spaces)")]
    MalformedKey,
    /// The client has no key and the call needs one.
    #[error("{call} needs an API key")]
    NoKey {
        /// The call.
        call: String,
    },
    /// An empty access policy would open the whole tailnet at the server's next start, so it is never sent.
    #[error("an empty or blank access policy is never sent to Headscale: it would allow everything")]
    BlankPolicy,
    /// Name resolution failed.
    #[error("the name {host} does not resolve: {detail}")]
    Dns {
        /// Host of the endpoint.
        host: String,
        /// The resolver's words.
        detail: String,
    },
    /// The TCP connection failed.
    #[error("cannot connect to {address}: {detail}")]
    Connect {
        /// `host:port` of the endpoint.
        address: String,
        /// The system's words.
        detail: String,
        /// Whether the other side refused at once (nothing listens there).
        refused: bool,
    },
    /// No TCP or TLS connection within the limit.
    #[error("no connection to {address} within {}", seconds(.after))]
    ConnectTimeout {
        /// `host:port` of the endpoint.
        address: String,
        /// The limit.
        after: Duration,
    },
    /// The TLS handshake failed.
    #[error("TLS with {address} failed: {detail}{}", tls_hint(*.unknown_issuer))]
    Tls {
        /// `host:port` of the endpoint.
        address: String,
        /// The TLS library's words.
        detail: String,
        /// Whether the certificate's issuer is not trusted here.
        unknown_issuer: bool,
    },
    /// No complete answer within the limit.
    #[error("{call} gave no complete answer within {}", seconds(.after))]
    Timeout {
        /// The call.
        call: String,
        /// The limit.
        after: Duration,
    },
    /// The connection broke in the middle of a request or answer.
    #[error("the connection broke during {call}: {detail}")]
    Broken {
        /// The call.
        call: String,
        /// What was seen.
        detail: String,
    },
    /// 401.
    #[error("{call}: Headscale refuses the API key (401)")]
    Unauthorized {
        /// The call.
        call: String,
    },
    /// The thing is not there, whatever status Headscale chose for saying so.
    #[error("{call}: {message}")]
    NotFound {
        /// The call.
        call: String,
        /// Headscale's words.
        message: String,
    },
    /// A name or key is taken.
    #[error("{call}: {message}")]
    Conflict {
        /// The call.
        call: String,
        /// Headscale's words.
        message: String,
    },
    /// Headscale understood and refuses (bad value, invalid policy, call disabled).
    #[error("{call}: refused: {message}")]
    Rejected {
        /// The call.
        call: String,
        /// HTTP status.
        status: u16,
        /// Headscale's words.
        message: String,
    },
    /// What we sent is larger than Headscale takes (it answers 429, which is no rate limit).
    #[error("{call}: the request is larger than Headscale accepts (4 MiB)")]
    RequestTooLarge {
        /// The call.
        call: String,
    },
    /// The answer is larger than we take.
    #[error("{call}: the answer is larger than {limit} bytes and was not read")]
    ReplyTooLarge {
        /// The call.
        call: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// A rate limit of something in front of Headscale (it has none itself).
    #[error("{call}: too many requests (429)")]
    RateLimited {
        /// The call.
        call: String,
        /// `Retry-After` in seconds, when given as a number.
        retry_after: Option<Duration>,
    },
    /// 5xx without a known permanent cause.
    #[error("{call}: Headscale answered {status}: {message}")]
    Server {
        /// The call.
        call: String,
        /// HTTP status.
        status: u16,
        /// The server's words.
        message: String,
    },
    /// A Headscale that does not know the call.
    #[error("{call}: this Headscale does not know the call ({status}); version 0.29 or newer is needed")]
    UnknownCall {
        /// The call.
        call: String,
        /// HTTP status: 404, 405 or 501.
        status: u16,
    },
    /// A redirect. It is not followed, since the key must not go to another place.
    #[error("{call}: redirected ({status}) to {location}; set the endpoint to the address that answers itself")]
    Redirected {
        /// The call.
        call: String,
        /// HTTP status.
        status: u16,
        /// Target without query.
        location: String,
    },
    /// Something else than Headscale's API answered.
    #[error("{call}: the answer is not Headscale's ({detail}); check the server URL or the API endpoint")]
    NotHeadscale {
        /// The call.
        call: String,
        /// What was seen.
        detail: String,
    },
}

impl Error {
    /// What the caller may do.
    pub fn class(&self) -> Class {
        match self {
            Error::Unauthorized { .. } => Class::Unauthorized,
            Error::NotFound { .. } => Class::Absent,
            Error::Trust(_)
            | Error::Setup(_)
            | Error::MalformedKey
            | Error::NoKey { .. }
            | Error::BlankPolicy
            | Error::Conflict { .. }
            | Error::Rejected { .. }
            | Error::RequestTooLarge { .. }
            | Error::ReplyTooLarge { .. } => Class::Permanent,
            Error::Timeout { .. } | Error::Broken { .. } | Error::RateLimited { .. } | Error::Server { .. } => {
                Class::Transient
            }
            Error::Tls { .. } => Class::Tls,
            Error::Dns { .. } => Class::Dns,
            Error::Connect { .. } | Error::ConnectTimeout { .. } => Class::Unreachable,
            Error::UnknownCall { .. } | Error::Redirected { .. } | Error::NotHeadscale { .. } => Class::NotHeadscale,
        }
    }

    /// Whether the server may have done what was asked although this error came back. A caller that made something
    /// (a key) must then look for an orphan.
    pub fn may_have_happened(&self) -> bool {
        matches!(
            self,
            Error::Timeout { .. }
                | Error::Broken { .. }
                | Error::Server { .. }
                | Error::ReplyTooLarge { .. }
                | Error::NotHeadscale { .. }
        )
    }
}

fn seconds(duration: &Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

fn tls_hint(unknown_issuer: bool) -> &'static str {
    if unknown_issuer {
        "; set the chart's trustedCA or spec.api.caConfigMapRef to the CA that issued this certificate"
    } else {
        ""
    }
}
