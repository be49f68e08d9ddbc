// Package check finds out whether reads of a file can go from its storage straight into a GPU (GPUDirect Storage). If
// they cannot, it names the first obstacle and the command that removes it.
//
// It works in three steps, so that a machine can be judged far from where it stands:
//
//	Capture   copies the few files of /sys, /proc, /etc and /dev that matter into a Recording, cleaned of secrets
//	Read      makes a Machine of a Recording: GPUs, drives, mounts, modules, in types
//	Judge     makes a Report of a Machine: findings and one verdict. It is a pure function
//
// A Recording can be written to a file (Record) and read again (Load). Judge never sees more than a Recording holds, so a
// recorded machine gets the same findings as the live one.
//
// Asking a library or a filesystem can hang. The caller runs such functions in a process of their own: CaptureDriver,
// LookAt, and cufile's probe. Their answers are put into the Recording.
//
// A static look can rule the direct path out, never in: without a proof by cufile's own counters the verdict is unknown.
//
// Sources of the rules, as of 2026: NVIDIA's GPUDirect Storage documentation (troubleshooting guide, release notes,
// "GDS support for NVMe drives using Linux PCI P2PDMA"), nvidia-fs 2.29, gpu-operator's ClusterPolicy.
package check
