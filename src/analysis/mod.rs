//! Pure folds over a profile: what a report says, before it is drawn.
