//! The C ABI of `go/exports.go`, and the only unsafe calls into it.

use std::ffi::{CStr, c_char, c_int};

use crate::error::Error;

unsafe extern "C" {
    fn tsn_new(
        config: *const c_char,
        len: i64,
        event_fd: c_int,
        log_fd: c_int,
        handle: *mut u64,
        out: *mut *mut c_char,
    ) -> c_int;
    fn tsn_up(handle: u64, ms: i64, out: *mut *mut c_char) -> c_int;
    fn tsn_close(handle: u64, ms: i64, out: *mut *mut c_char) -> c_int;
    #[allow(clippy::too_many_arguments)]
    fn tsn_splice_dial(
        handle: u64,
        token: u64,
        fd: c_int,
        addr: *const c_char,
        addr_len: i64,
        prefix: *const c_char,
        prefix_len: i64,
        ms: i64,
        out: *mut *mut c_char,
    ) -> c_int;
    fn tsn_splice_abort(handle: u64, token: u64, why: *const c_char, why_len: i64, out: *mut *mut c_char) -> c_int;
    fn tsn_dial(handle: u64, token: u64, addr: *const c_char, addr_len: i64, ms: i64, out: *mut *mut c_char) -> c_int;
    fn tsn_listen(handle: u64, port: c_int, out: *mut *mut c_char) -> c_int;
    fn tsn_unlisten(handle: u64, port: c_int, out: *mut *mut c_char) -> c_int;
    fn tsn_conn_fd(handle: u64, conn: u64, token: u64, fd: *mut c_int, out: *mut *mut c_char) -> c_int;
    fn tsn_splice_conn(handle: u64, conn: u64, token: u64, fd: c_int, out: *mut *mut c_char) -> c_int;
    fn tsn_conn_close(handle: u64, conn: u64, out: *mut *mut c_char) -> c_int;
    fn tsn_status(handle: u64, peers: c_int, out: *mut *mut c_char) -> c_int;
    fn tsn_route(handle: u64, host: *const c_char, host_len: i64, ms: i64, out: *mut *mut c_char) -> c_int;
    fn tsn_whois(handle: u64, addr: *const c_char, addr_len: i64, out: *mut *mut c_char) -> c_int;
    fn tsn_probe(handle: u64, ms: i64, out: *mut *mut c_char) -> c_int;
    fn tsn_memory_limit(bytes: i64, out: *mut *mut c_char) -> c_int;
    fn tsn_version(out: *mut *mut c_char) -> c_int;
    fn tsn_free(text: *mut c_char);
}

/// Runs one call and turns its code and text into a result.
fn call(f: impl FnOnce(*mut *mut c_char) -> c_int) -> Result<String, Error> {
    let mut out: *mut c_char = std::ptr::null_mut();
    let code = f(&raw mut out);
    let text = if out.is_null() {
        String::new()
    } else {
        // SAFETY: Go gives a NUL-terminated string of its own allocation and leaves it to us; it is freed once, here.
        unsafe {
            let text = CStr::from_ptr(out).to_string_lossy().into_owned();
            tsn_free(out);
            text
        }
    };
    match code {
        0 => Ok(text),
        -2 => Err(Error::Closed),
        -3 => Err(Error::Deadline(text)),
        -4 => Err(Error::Panic(text)),
        _ => Err(Error::Client(text)),
    }
}

fn len(bytes: &[u8]) -> i64 {
    i64::try_from(bytes.len()).unwrap_or(i64::MAX)
}

/// Where `bytes` are. Null when there are none: the address of an empty slice is a made-up one, and Go's runtime aborts the
/// process when it meets such a pointer on a stack.
fn at(bytes: &[u8]) -> *const c_char {
    if bytes.is_empty() {
        std::ptr::null()
    } else {
        bytes.as_ptr().cast()
    }
}

// SAFETY of every call below: pointers are to live memory with the length given beside them, Go copies what it keeps, and
// `out` is a valid place for one pointer. File descriptors are given away by the callers.

pub(crate) fn new(config: &[u8], event_fd: c_int, log_fd: c_int) -> Result<u64, Error> {
    let mut handle = 0;
    call(|out| unsafe { tsn_new(at(config), len(config), event_fd, log_fd, &raw mut handle, out) })?;
    Ok(handle)
}

pub(crate) fn up(handle: u64, ms: i64) -> Result<(), Error> {
    call(|out| unsafe { tsn_up(handle, ms, out) }).map(drop)
}

pub(crate) fn close(handle: u64, ms: i64) -> Result<(), Error> {
    call(|out| unsafe { tsn_close(handle, ms, out) }).map(drop)
}

pub(crate) fn splice_dial(handle: u64, token: u64, fd: c_int, addr: &str, prefix: &[u8], ms: i64) -> Result<(), Error> {
    let addr = addr.as_bytes();
    call(|out| unsafe { tsn_splice_dial(handle, token, fd, at(addr), len(addr), at(prefix), len(prefix), ms, out) })
        .map(drop)
}

pub(crate) fn splice_abort(handle: u64, token: u64, why: &str) -> Result<(), Error> {
    let why = why.as_bytes();
    call(|out| unsafe { tsn_splice_abort(handle, token, at(why), len(why), out) }).map(drop)
}

pub(crate) fn dial(handle: u64, token: u64, addr: &str, ms: i64) -> Result<(), Error> {
    let addr = addr.as_bytes();
    call(|out| unsafe { tsn_dial(handle, token, at(addr), len(addr), ms, out) }).map(drop)
}

pub(crate) fn listen(handle: u64, port: u16) -> Result<(), Error> {
    call(|out| unsafe { tsn_listen(handle, c_int::from(port), out) }).map(drop)
}

pub(crate) fn unlisten(handle: u64, port: u16) -> Result<(), Error> {
    call(|out| unsafe { tsn_unlisten(handle, c_int::from(port), out) }).map(drop)
}

pub(crate) fn conn_fd(handle: u64, conn: u64, token: u64) -> Result<c_int, Error> {
    let mut fd = -1;
    call(|out| unsafe { tsn_conn_fd(handle, conn, token, &raw mut fd, out) })?;
    Ok(fd)
}

pub(crate) fn splice_conn(handle: u64, conn: u64, token: u64, fd: c_int) -> Result<(), Error> {
    call(|out| unsafe { tsn_splice_conn(handle, conn, token, fd, out) }).map(drop)
}

pub(crate) fn conn_close(handle: u64, conn: u64) -> Result<(), Error> {
    call(|out| unsafe { tsn_conn_close(handle, conn, out) }).map(drop)
}

pub(crate) fn status(handle: u64, peers: bool) -> Result<String, Error> {
    call(|out| unsafe { tsn_status(handle, c_int::from(peers), out) })
}

pub(crate) fn route(handle: u64, host: &str, ms: i64) -> Result<String, Error> {
    let host = host.as_bytes();
    call(|out| unsafe { tsn_route(handle, at(host), len(host), ms, out) })
}

pub(crate) fn whois(handle: u64, addr: &str) -> Result<String, Error> {
    let addr = addr.as_bytes();
    call(|out| unsafe { tsn_whois(handle, at(addr), len(addr), out) })
}

pub(crate) fn probe(handle: u64, ms: i64) -> Result<String, Error> {
    call(|out| unsafe { tsn_probe(handle, ms, out) })
}

pub(crate) fn memory_limit(bytes: i64) -> Result<(), Error> {
    call(|out| unsafe { tsn_memory_limit(bytes, out) }).map(drop)
}

pub(crate) fn version() -> Result<String, Error> {
    call(|out| unsafe { tsn_version(out) })
}

#[cfg(test)]
mod tests {
    #[test]
    fn go_never_gets_the_pointer_of_an_empty_slice() {
        assert!(super::at(&[]).is_null());
        let bytes = [1_u8];
        assert_eq!(super::at(&bytes).cast(), bytes.as_ptr());
    }
}
