//! Promises made to users, one file each, against real parts wherever they can be had.

mod cgroup_files;
