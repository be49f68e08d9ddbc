// Package plan says how much a path into GPU memory is worth before somebody buys or deploys it. It computes how fast N
// GPUs of a node would read by each path, and which stage binds. It gives time and cost of an epoch, a checkpoint or a
// load of weights.
//
// It is a model. It does no I/O but reading a description (YAML), results of hbmfs bench (JSON) and, bounded, sysfs.
// Parse or Discover gives nodes, Calibrate takes measured figures in, and Build makes a Report. That prints as a table,
// as JSON, or as one HTML page. Units: bytes, seconds, and GB/s of 1e9 bytes, unless a name says otherwise.
//
// # Registration
//
// Memory must be registered (pinned and mapped) before a device may read or write it:
//
//	T_reg      = fixed + ceil(bytes / page) x perPage           [s]
//	T_transfer = n x bytes / link                               [s], n I/Os through one registration
//	R          = T_transfer / (T_reg + T_transfer)              efficiency, 0 to 1
//	n(R)       = ceil(R/(1-R) x T_reg x link / bytes)           I/Os until a wanted R: the break-even
//
// CPU memory has pages of 4 KiB. At 1 us a page, the textbook's figure, 1 GiB costs 262,144 pages = 262 ms. The driver
// of an H200 host needed 22 to 24 ms/GB (0.098 us a page) for page cache that was populated (docs/benchmarks.md).
// GPU memory is pinned in pages of 64 KiB (nvidia-fs: the shadow buffer's granularity), 16 times fewer.
//
// Known figures of others, compared with the model (registration_test.go computes all of them):
//
//   - R = 0.23 for I/Os of 1 MiB at 100 Gb/s, registered for each I/O: follows for CPU memory with 25 us fixed cost
//     (0.25 with none). The 25 us are chosen so that it does.
//   - "R = 0.86 after 4 I/Os with a persistent registration" does NOT follow for that same CPU memory: 4 I/Os give
//     0.54, and 0.86 takes 21. It does hold for GPU memory at 1.85 us a page of 64 KiB, a cost chosen to make it hold.
//     So do not plan with 4.
//
// # Stages
//
// A read passes stages: storage (NVMe, NIC), PCIe links and switches, the link between sockets, host memory, for staged
// the CPUs, and the GPU's own link. In a steady state the slowest stage binds. The rate of a PCIe link is
//
//	raw = lanes x GT/s x coding / 8,  coding 8/10 (gen 1, 2), 128/130 (3 to 5), 242/256 (6)   [PCIe base specification]
//
// times an efficiency for headers and flow control: 55.2 of 63.0 GB/s for a pinned copy over gen 5 x16 on an H200,
// 0.876, unless calibrated. A byte crosses the memory bus once with pinned and mapped, about twice with staged, three
// times with plain. Of staged, half of a slot's traffic stays in the last-level cache.
//
// Depth d, I/Os of s bytes and a latency of L give at most d x s / (L + s/rate) (Little's law). A fence each F bytes, at
// which all I/Os under way must end, makes F bytes take F/rate + L.
//
// # Contention
//
// Network.Simulate moves quanta of N streams through the shared stages as events. Each stage serves one quantum at a
// time, chosen by start-time fair queueing with the streams' weights (Goyal, Vin, Cheng 1996). Each stream keeps a
// number of quanta under way. Without a cost of contention this approaches weighted max-min fairness (Hahne 1991 for
// round robin with windows). Tests compare it with Network.MaxMin, an exact solver. With a contention c, service takes
// 1 + c(n-1) times as long while n streams wait at a stage. Then the aggregate has a maximum, which Build reports.
//
// # CPUs
//
// T threads that copy from the page cache into pinned slots reach, after Gunther's universal scalability law,
//
//	X(T) = perThread x T / (1 + coherence x T(T-1))
//
// Both constants are fitted to staged runs that were not bound by the GPU's link (less than 0.9 of it). The law's other
// constant, serial contention, came out as zero wherever we measured and is left out. A fit to two or three points is
// extrapolated at most four-fold; ranges below show how far it may then be off.
//
// # Ranges
//
// Every figure is a range. Measured rates are taken as +-5%, by which runs on machines of one type differed. Described
// or assumed ones are +-15%, unless the description says otherwise. Registration is bounded from both sides. Low
// follows from all low figures together, high from all high ones: wide on purpose, and no confidence interval.
//
// # Runs that were held out
//
// Calibrated by runs on one and two H200s, the model predicts four and eight. It is within 9% for pinned, 5% for mapped and
// 15% for staged (heldout_test.go; docs/reference/planning.md has the table). The layout of that host was not recorded with
// the figures. Four GPUs on two x16 uplinks of each socket, and 50 GB/s between the sockets (about one UPI or xGMI link), are
// assumptions. The test shows that any value from 40 to 80 GB/s would have done.
package plan
