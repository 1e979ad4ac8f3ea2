//! A native connector in C++: files or memory, with a pool of threads.
