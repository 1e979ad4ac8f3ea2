use std::ops::RangeInclusive;

use serde_json::{Map, Value};

/// Reads the parameters of one transform, and knows which there are.
#[derive(Debug)]
pub(super) struct Parameters<'a> {
    transform: &'static str,
    given: &'a Map<String, Value>,
    known: Vec<&'static str>,
}

impl<'a> Parameters<'a> {
    pub(super) fn of(transform: &'static str, given: &'a Map<String, Value>) -> Self {
        Self {
            transform,
            given,
            // LMCache's number of threads: ours are the controllers'.
            known: vec!["type", "max_workers"],
        }
    }

    fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.given.get(name).filter(|value| !value.is_null())
    }

    /// That a parameter is something else than it should be.
    pub(super) fn wrong(&self, name: &str, value: &Value, expected: &str) -> String {
        let transform = self.transform;
        format!("serde {transform:?}: {name} is {value}; expected {expected}")
    }

    pub(super) fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
        default: i64,
    ) -> Result<i64, String> {
        let Some(value) = self.get(name) else {
            return Ok(default);
        };
        let (least, most) = range.clone().into_inner();
        let number = value.as_i64().filter(|number| range.contains(number));
        number.ok_or_else(|| self.wrong(name, value, &format!("an integer from {least} to {most}")))
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Result<bool, String> {
        let Some(value) = self.get(name) else {
            return Ok(false);
        };
        value
            .as_bool()
            .ok_or_else(|| self.wrong(name, value, "true or false"))
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<&'a str>, String> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let text = value.as_str().filter(|text| !text.is_empty());
        match text {
            Some(text) => Ok(Some(text)),
            None => Err(self.wrong(name, value, "a text")),
        }
    }

    /// Refuses what was not asked for.
    pub(super) fn finish(self) -> Result<(), String> {
        let unknown = self
            .given
            .keys()
            .find(|name| !self.known.contains(&name.as_str()));
        match unknown {
            None => Ok(()),
            Some(name) => Err(format!(
                "serde {:?} has no parameter {name:?}; expected some of: {}",
                self.transform,
                self.known[2..].join(", ")
            )),
        }
    }
}
