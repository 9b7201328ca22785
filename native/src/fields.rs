//! Header fields: those of a request as they came, and those of answers, made once and sent many times.

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyBytes;

/// Fields of an answer.
#[pyclass(frozen, module = "dexorder_http2")]
pub struct Fields(pub HeaderMap);

#[pymethods]
impl Fields {
    #[new]
    fn new(pairs: Vec<(PyBackedStr, PyBackedBytes)>) -> PyResult<Self> {
        let mut map = HeaderMap::with_capacity(pairs.len());
        for (name, value) in &pairs {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| PyValueError::new_err(format!("{:?} is not the name of a header field", &**name)))?;
            let value = HeaderValue::from_bytes(value)
                .map_err(|_| PyValueError::new_err(format!("the value of header field {name} has a control character")))?;
            map.append(name, value);
        }
        Ok(Self(map))
    }
}

/// Method, path and fields of a request.
#[pyclass(frozen, module = "dexorder_http2")]
pub struct Head(pub Parts);

#[pymethods]
impl Head {
    #[getter]
    fn method(&self) -> &str {
        self.0.method.as_str()
    }

    #[getter]
    fn path(&self) -> &str {
        self.0.uri.path()
    }

    #[getter]
    fn authority(&self) -> Option<&str> {
        self.0.uri.authority().map(|authority| authority.as_str())
    }

    fn get<'py>(&self, py: Python<'py>, name: &str) -> Option<Bound<'py, PyBytes>> {
        self.0.headers.get(name).map(|value| PyBytes::new(py, value.as_bytes()))
    }

    fn pairs<'py>(&self, py: Python<'py>) -> Vec<(&str, Bound<'py, PyBytes>)> {
        self.0.headers.iter().map(|(name, value)| (name.as_str(), PyBytes::new(py, value.as_bytes()))).collect()
    }
}
