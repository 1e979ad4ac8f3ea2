//! Native connectors: the C interface, shared libraries, and the bridge that makes an adapter of a connector.
