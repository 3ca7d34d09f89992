//! The meter of a running expression: how many steps and how much time are left.
//!
//! The interpreter knows no limits, so the compiled expression carries them: every turn of a loop calls [`step`], every
//! value that is built calls [`weigh`]. When a limit is reached the call fails, and so does everything around it; an
//! expression that swallows the failure (`failed || true`) is found out at the end by [`exceeded`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cel::{ExecutionError, Value};

use super::document::Variable;

/// Steps of one policy for one object: about the parts of expressions that are evaluated, plus the sizes of the values that
/// are built.
pub const MAX_STEPS: u64 = 500_000;
/// Largest value that an expression may build, in parts: entries, fields, and 16 characters of text each.
pub const MAX_SIZE: u64 = 20_000;
/// Longest time of one policy for one object, where the process has given the snapshot a clock.
pub const MAX_TIME: Duration = Duration::from_millis(200);
/// Longest time of all policies for one object.
pub const MAX_TIME_OF_ALL: Duration = Duration::from_millis(1000);

/// Which limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Steps,
    Size,
    Time,
    TimeOfAll,
}

impl Limit {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Steps => format!("needs more than {MAX_STEPS} steps"),
            Self::Size => format!("builds a value of more than {MAX_SIZE} parts"),
            Self::Time => format!("takes longer than {} ms", MAX_TIME.as_millis()),
            Self::TimeOfAll => format!(
                "could not be asked: all policies together took longer than {} ms",
                MAX_TIME_OF_ALL.as_millis()
            ),
        }
    }
}

/// A clock that only goes forward.
pub(crate) type Clock = fn() -> Duration;

/// What is left of the time for all policies on one object.
#[derive(Clone, Copy)]
pub(crate) struct TimeOfAll {
    pub(crate) clock: Option<Clock>,
    pub(crate) end: Duration,
}

impl TimeOfAll {
    pub(crate) fn start(clock: Option<Clock>) -> Self {
        Self {
            clock,
            end: clock.map_or(Duration::ZERO, |now| now() + MAX_TIME_OF_ALL),
        }
    }

    /// Whether nothing is left.
    pub(crate) fn is_over(&self) -> bool {
        self.clock.is_some_and(|now| now() >= self.end)
    }
}

struct Meter {
    left: Cell<u64>,
    exceeded: Cell<Option<Limit>>,
    time: TimeOfAll,
    end: Duration,
    variables: Arc<[Variable]>,
    values: RefCell<HashMap<usize, Result<Value, ExecutionError>>>,
}

thread_local! {
    static METER: RefCell<Option<Meter>> = const { RefCell::new(None) };
}

/// Removes the meter however the evaluation ends.
struct Removed;

impl Drop for Removed {
    fn drop(&mut self) {
        METER.with(|meter| meter.borrow_mut().take());
    }
}

/// Runs `work`, which evaluates expressions of one document with these variables, under one meter.
pub(crate) fn metered<T>(time: TimeOfAll, variables: &Arc<[Variable]>, work: impl FnOnce() -> T) -> T {
    let now = time.clock.map_or(Duration::ZERO, |now| now());
    METER.with(|meter| {
        *meter.borrow_mut() = Some(Meter {
            left: Cell::new(MAX_STEPS),
            exceeded: Cell::new(time.is_over().then_some(Limit::TimeOfAll)),
            time,
            end: (now + MAX_TIME).min(time.end),
            variables: Arc::clone(variables),
            values: RefCell::default(),
        });
    });
    let _removed = Removed;
    work()
}

/// The limit that was reached, if one was.
pub(crate) fn exceeded() -> Option<Limit> {
    METER.with(|meter| meter.borrow().as_ref().and_then(|meter| meter.exceeded.get()))
}

fn failed() -> ExecutionError {
    ExecutionError::function_error("limit", "a limit is reached")
}

/// Takes steps; fails when there are none left, or no time.
pub(crate) fn step(steps: u64) -> Result<(), ExecutionError> {
    METER.with(|meter| {
        let meter = meter.borrow();
        let Some(meter) = meter.as_ref() else { return Ok(()) };
        if meter.exceeded.get().is_some() {
            return Err(failed());
        }
        match meter.left.get().checked_sub(steps) {
            Some(left) => meter.left.set(left),
            None => meter.exceeded.set(Some(Limit::Steps)),
        }
        if meter.time.is_over() {
            meter.exceeded.set(Some(Limit::TimeOfAll));
        } else if meter.time.clock.is_some_and(|now| now() >= meter.end) {
            meter.exceeded.set(Some(Limit::Time));
        }
        if meter.exceeded.get().is_some() {
            return Err(failed());
        }
        Ok(())
    })
}

/// Takes as many steps as the value is large; fails when it is too large.
pub(crate) fn weigh(value: &Value) -> Result<(), ExecutionError> {
    let size = size(value, MAX_SIZE + 1);
    if size > MAX_SIZE {
        METER.with(|meter| {
            if let Some(meter) = meter.borrow().as_ref() {
                meter.exceeded.set(Some(Limit::Size));
            }
        });
        return Err(failed());
    }
    step(size)
}

/// Parts of a value; counting ends at `enough`.
pub(crate) fn size(value: &Value, enough: u64) -> u64 {
    let of_text = |bytes: usize| 1 + bytes as u64 / 16;
    match value {
        Value::String(text) => of_text(text.len()),
        Value::Bytes(bytes) => of_text(bytes.len()),
        Value::List(items) => {
            let mut sum = 1;
            for item in items.iter() {
                if sum >= enough {
                    break;
                }
                sum += size(item, enough - sum);
            }
            sum
        }
        Value::Map(map) => {
            let mut sum = 1;
            for item in map.map.values() {
                if sum >= enough {
                    break;
                }
                sum += 1 + size(item, enough - sum);
            }
            sum
        }
        _ => 1,
    }
}

/// The value of a variable of the document, worked out at its first use.
pub(crate) fn variable(at: usize, context: &cel::Context<'_>) -> Result<Value, ExecutionError> {
    let unknown = || ExecutionError::function_error("variables", "there is no such variable");
    let (variables, known) = METER.with(|meter| {
        let meter = meter.borrow();
        let meter = meter.as_ref().ok_or_else(unknown)?;
        let known = meter.values.borrow().get(&at).cloned();
        Ok::<_, ExecutionError>((Arc::clone(&meter.variables), known))
    })?;
    if let Some(known) = known {
        return known;
    }
    step(1)?;
    let variable = variables.get(at).ok_or_else(unknown)?;
    let value = variable
        .expression
        .value(context)
        .and_then(|value| weigh(&value).map(|()| value));
    METER.with(|meter| {
        if let Some(meter) = meter.borrow().as_ref() {
            meter.values.borrow_mut().insert(at, value.clone());
        }
    });
    value
}
