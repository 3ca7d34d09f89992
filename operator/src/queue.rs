//! Work queues: who wants an object looked at pushes its reference; the controller's scheduler merges duplicates.

use std::convert::Infallible;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;

/// Sending side; cheap to clone, never blocks. References pushed after the controller has ended are dropped.
pub struct Queue<K: Resource<DynamicType: Hash + Eq + Clone>> {
    sender: mpsc::UnboundedSender<ObjectRef<K>>,
}

impl<K: Resource<DynamicType: Hash + Eq + Clone>> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self {
            sender: self.sender.clone(),
        }
    }
}

/// Receiving side: the queue stream of [`kube::runtime::controller::applier`]-like controllers.
pub struct Requests<K: Resource<DynamicType: Hash + Eq + Clone>> {
    receiver: mpsc::UnboundedReceiver<ObjectRef<K>>,
}

/// A new queue.
pub fn queue<K: Resource<DynamicType: Hash + Eq + Clone>>() -> (Queue<K>, Requests<K>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Queue { sender }, Requests { receiver })
}

impl<K: Resource<DynamicType: Hash + Eq + Clone>> Queue<K> {
    /// Ask for a reconcile of `object`.
    pub fn push(&self, object: ObjectRef<K>) {
        // The receiver is gone only while the process stops: nothing is lost then.
        let _ = self.sender.send(object);
    }
}

impl<K: Resource<DynamicType: Hash + Eq + Clone>> Stream for Requests<K> {
    type Item = Result<ObjectRef<K>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(context).map(|next| next.map(Ok))
    }
}
