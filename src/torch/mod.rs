//! What makes this torchspy: rules that say what a moment of a trainer was. Pure.
