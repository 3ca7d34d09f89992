//! An open connection from its start to its end.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tsnet::{Carried, DialError, ErrorClass, SpliceEnd};

use crate::metrics::{ByteLabel, Metrics};

/// How often the bytes of an open connection are added to the metrics.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// Waits for the end of `carried`, a connection of the target or expose `name`, and counts its bytes meanwhile. Ends it with
/// `not_configured` as the reason when `removed` does, and gives up on it once the node closes (`abandon`).
pub(crate) async fn until_end(
    carried: Carried,
    name: &str,
    metrics: &Metrics,
    (removed, not_configured): (impl Future<Output = ()>, &str),
    abandon: &CancellationToken,
) -> SpliceEnd {
    let Carried {
        mut ended,
        traffic,
        abort,
    } = carried;
    tokio::pin!(removed);
    let (mut counted, mut aborted) = (Counted::default(), false);
    loop {
        tokio::select! {
            () = &mut removed, if !aborted => {
                abort.abort(not_configured);
                aborted = true;
            }
            end = &mut ended => {
                counted.add(metrics, name, end.up.max(traffic.up()), end.down.max(traffic.down()));
                return end;
            }
            () = tokio::time::sleep(COUNT_EVERY) => counted.add(metrics, name, traffic.up(), traffic.down()),
            () = abandon.cancelled() => {
                // The node closes now, and with it the connection, which is told here a little later.
                return tokio::time::timeout(COUNT_EVERY, ended).await.unwrap_or_else(|_| SpliceEnd {
                    up: traffic.up(),
                    down: traffic.down(),
                    took: Duration::ZERO,
                    error: Some(DialError { class: ErrorClass::Shutdown, message: "the drain is over".into() }),
                });
            }
        }
    }
}

/// Bytes of one connection that are in the metrics already.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    up: u64,
    down: u64,
}

impl Counted {
    pub(crate) fn add(&mut self, metrics: &Metrics, target: &str, up: u64, down: u64) {
        let directions = [("to_tailnet", &mut self.up, up), ("from_tailnet", &mut self.down, down)];
        for (direction, counted, now) in directions {
            if now > *counted {
                let label = ByteLabel {
                    target: target.to_owned(),
                    direction,
                };
                metrics.bytes.get_or_create(&label).inc_by(now - *counted);
                *counted = now;
            }
        }
    }
}
