//! Bindings of the prompt reader: everything is loaded at start, and bodies are read without the GIL.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use chrono::{Datelike, Timelike};
use http::{HeaderMap, HeaderName, HeaderValue};
use kvatlas_prompts::{
    Budget, CacheStats, ChatTemplate, Encoder, Left, LocalTime, NoCuts, PromptReader, Route,
    SegmentCache, Template, Tenant,
};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A `tokenizer.json`, loaded by `fastokens`. Thread-safe.
#[pyclass(frozen, name = "TextEncoder", module = "kvatlas_native")]
pub struct PyTextEncoder {
    encoder: Arc<Encoder>,
}

#[pymethods]
impl PyTextEncoder {
    #[new]
    fn new(py: Python<'_>, file: PathBuf) -> PyResult<Self> {
        let encoder = py
            .detach(|| Encoder::load(&file))
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self {
            encoder: Arc::new(encoder),
        })
    }

    #[pyo3(signature = (text, *, add_special_tokens))]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        text: &str,
        add_special_tokens: bool,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        py.detach(|| self.encoder.encode(text, add_special_tokens))
            .map(|ids| ids.into_pyarray(py))
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

/// A chat template that Jinja2 has parsed.
#[pyclass(frozen, name = "TemplateRenderer", module = "kvatlas_native")]
pub struct PyTemplateRenderer {
    template: Arc<ChatTemplate>,
}

#[pymethods]
impl PyTemplateRenderer {
    #[new]
    #[pyo3(signature = (tree, *, special_tokens, content_is_list))]
    fn new(
        tree: &[u8],
        special_tokens: HashMap<String, String>,
        content_is_list: bool,
    ) -> PyResult<Self> {
        let template =
            Template::load(tree).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self {
            template: Arc::new(ChatTemplate {
                template,
                special_tokens: special_tokens.into_iter().collect(),
                content_is_list,
            }),
        })
    }

    /// None: left to Python. `now`: year, month, day, hour, minute, second, days since Sunday.
    fn render(
        &self,
        py: Python<'_>,
        body: &[u8],
        now: (i32, u8, u8, u8, u8, u8, u8),
    ) -> Option<(String, bool)> {
        let now = LocalTime {
            year: now.0,
            month: now.1,
            day: now.2,
            hour: now.3,
            minute: now.4,
            second: now.5,
            weekday: now.6,
        };
        py.detach(|| self.template.render_body(body, &|| now).ok())
    }
}

fn local_time() -> LocalTime {
    let now = chrono::Local::now();
    // Each fits: hours are below 24, and so on.
    let small = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
    LocalTime {
        year: now.year(),
        month: small(now.month()),
        day: small(now.day()),
        hour: small(now.hour()),
        minute: small(now.minute()),
        second: small(now.second()),
        weekday: small(now.weekday().num_days_from_sunday()),
    }
}

/// The cache of tokens so far.
#[pyclass(frozen, get_all, name = "CacheStats", module = "kvatlas_native")]
pub struct PyCacheStats {
    hit_bytes: u64,
    miss_bytes: u64,
    bytes: usize,
    entries: usize,
}

/// The part of requests' bodies that routing needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Fields,
    Tokens,
    Hashes,
}

/// Reads requests' bodies.
#[pyclass(frozen, name = "PromptReader", module = "kvatlas_native")]
pub struct PyPromptReader {
    pub reader: Arc<Reader>,
    /// Why there is no cache, though one is wanted.
    uncut: Option<NoCuts>,
}

/// The part of a reader that other threads use.
pub struct Reader {
    reader: PromptReader,
    wanted: Wanted,
    threads: usize,
    /// Names the tenant, if it is set.
    tenant_header: Option<String>,
    /// Names of the LoRA adapters by requested model.
    adapters: RwLock<Arc<HashMap<String, String>>>,
}

#[pymethods]
impl PyPromptReader {
    #[new]
    #[pyo3(signature = (*, encoder, template, block_size, wanted, threads, cache_bytes_max, tenant_header))]
    fn new(
        encoder: Option<&PyTextEncoder>,
        template: Option<&PyTemplateRenderer>,
        block_size: NonZeroUsize,
        wanted: &str,
        threads: usize,
        cache_bytes_max: usize,
        tenant_header: Option<&str>,
    ) -> PyResult<Self> {
        let wanted = match wanted {
            "fields" => Wanted::Fields,
            "tokens" => Wanted::Tokens,
            "hashes" => Wanted::Hashes,
            _ => return Err(PyValueError::new_err("wanted: fields, tokens or hashes")),
        };
        let tenant_header = tenant_header
            .map(str::parse::<HeaderName>)
            .transpose()
            .map_err(|_| PyValueError::new_err("tenant_header is not the name of a header"))?
            .map(|name| name.as_str().to_owned());
        let (cache, uncut) = match encoder {
            Some(encoder) if cache_bytes_max > 0 => match encoder.encoder.cuts() {
                Ok(cuts) => (Some(SegmentCache::new(cuts, cache_bytes_max)), None),
                Err(why) => (None, Some(why)),
            },
            _ => (None, None),
        };
        let reader = PromptReader {
            encoder: encoder.map(|encoder| Arc::clone(&encoder.encoder)),
            template: template.map(|template| Arc::clone(&template.template)),
            cache,
            block_size,
            wants_tokens: wanted != Wanted::Fields,
            now: Box::new(local_time),
        };
        Ok(Self {
            uncut,
            reader: Arc::new(Reader {
                reader,
                wanted,
                threads,
                tenant_header,
                adapters: RwLock::default(),
            }),
        })
    }

    /// Replaces the names of the adapters.
    fn set_adapters(&self, adapters: HashMap<String, String>) {
        let mut place = self
            .reader
            .adapters
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *place = Arc::new(adapters);
    }

    #[getter]
    fn no_cache_because(&self) -> Option<String> {
        self.uncut.as_ref().map(NoCuts::to_string)
    }

    /// None: there is no cache.
    fn cache_stats(&self) -> Option<PyCacheStats> {
        let CacheStats {
            hit_bytes,
            miss_bytes,
            bytes,
            entries,
        } = self.reader.reader.cache.as_ref()?.stats();
        Some(PyCacheStats {
            hit_bytes,
            miss_bytes,
            bytes,
            entries,
        })
    }

    /// A string: why the body is left to Python.
    #[pyo3(signature = (path, body, *, tenant=None))]
    fn read(
        &self,
        py: Python<'_>,
        path: &str,
        body: &[u8],
        tenant: Option<&[u8]>,
    ) -> PyResult<Py<PyAny>> {
        let tenant = tenant.map_or(Tenant::Unknown, Tenant::Named);
        let route = route(path).ok_or_else(|| PyValueError::new_err("no route with a prompt"))?;
        match py.detach(|| self.reader.read(route, body, tenant, Budget(u64::MAX))) {
            Ok(read) => Ok(Py::new(py, PyReadPrompt::new(py, read))?.into_any()),
            Err(left) => Ok(left.name().into_pyobject(py)?.into_any().unbind()),
        }
    }
}

/// The route of a path, if its requests have prompts.
pub fn route(path: &str) -> Option<Route> {
    match path {
        "/v1/completions" => Some(Route::Completions),
        "/v1/chat/completions" => Some(Route::Chat),
        _ => None,
    }
}

/// A prompt that has been read.
pub struct Read {
    pub model: Option<String>,
    pub stream: bool,
    pub cache_salt: Option<String>,
    pub batch: bool,
    pub lora_name: Option<String>,
    pub tokens: Option<kvatlas_prompts::Tokens>,
    pub chunk_hashes: Option<Vec<u64>>,
    pub tokenize: Duration,
    pub hash: Duration,
}

impl Reader {
    /// Number of threads that may read long bodies at the same time.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Whose prompts a request's are.
    pub fn tenant<'a>(&self, headers: &'a HeaderMap) -> Tenant<'a> {
        let value = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
        if let Some(named) = self.tenant_header.as_deref().and_then(value) {
            return Tenant::Named(named);
        }
        // OpenAI's and Anthropic's.
        match value("authorization").or_else(|| value("x-api-key")) {
            Some(credentials) => Tenant::Credentials(credentials),
            None => Tenant::Unknown,
        }
    }

    /// Reads a body as far as routing wants it.
    pub fn read(
        &self,
        route: Route,
        body: &[u8],
        tenant: Tenant<'_>,
        budget: Budget,
    ) -> Result<Read, Left> {
        let began = Instant::now();
        let mut body = self.reader.body(route, body)?;
        let tokens = match self.wanted {
            Wanted::Fields => None,
            _ => Some(self.reader.tokens(&mut body, tenant, budget)?),
        };
        let tokenized = Instant::now();
        let adapters = Arc::clone(&self.adapters.read().unwrap_or_else(PoisonError::into_inner));
        let lora_name = body.model().and_then(|model| adapters.get(model)).cloned();
        let chunk_hashes = match (&tokens, self.wanted) {
            (Some(tokens), Wanted::Hashes) => {
                let (lora_name, salt) = (lora_name.as_deref(), body.cache_salt());
                Some(self.reader.chunk_hashes(tokens, lora_name, salt))
            }
            _ => None,
        };
        Ok(Read {
            model: body.model().map(str::to_owned),
            stream: body.stream(),
            cache_salt: body.cache_salt().map(str::to_owned),
            batch: body.batch(),
            lora_name,
            tokens,
            chunk_hashes,
            tokenize: tokenized - began,
            hash: tokenized.elapsed(),
        })
    }
}

/// A prompt that has been read.
#[pyclass(frozen, get_all, name = "ReadPrompt", module = "kvatlas_native")]
pub struct PyReadPrompt {
    model: Option<String>,
    stream: bool,
    cache_salt: Option<String>,
    batch: bool,
    lora_name: Option<String>,
    tokens: Option<Py<PyArray1<u32>>>,
    whole: bool,
    chunk_hashes: Option<Py<PyArray1<u64>>>,
    tokenize_s: f64,
    hash_s: f64,
}

impl PyReadPrompt {
    /// Takes over the arrays without a copy.
    pub fn new(py: Python<'_>, read: Read) -> Self {
        let whole = read.tokens.as_ref().is_some_and(|tokens| tokens.is_whole);
        Self {
            model: read.model,
            stream: read.stream,
            cache_salt: read.cache_salt,
            batch: read.batch,
            lora_name: read.lora_name,
            tokens: read
                .tokens
                .map(|tokens| tokens.ids.into_pyarray(py).unbind()),
            whole,
            chunk_hashes: read
                .chunk_hashes
                .map(|hashes| hashes.into_pyarray(py).unbind()),
            tokenize_s: read.tokenize.as_secs_f64(),
            hash_s: read.hash.as_secs_f64(),
        }
    }
}
