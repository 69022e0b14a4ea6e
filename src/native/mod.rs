//! Native code: modules, unwinding, symbols. Pure: handed memory and bytes.
