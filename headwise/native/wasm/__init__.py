"""The encoder as WebAssembly, for pages that carry a model: its source `page.cpp`, and the compiled `encoder.wasm`."""
