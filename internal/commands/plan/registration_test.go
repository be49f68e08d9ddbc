package plan

import (
	"math/rand/v2"
	"testing"
)

const (
	mib     = 1 << 20
	gib     = 1 << 30
	hundred = 12.5 // GB/s of 100 Gb/s
)

// The worked figures of the model's sources: those that hold, and the one that does not.
func TestWorkedFigures(t *testing.T) {
	cpu, gpu := Registrations()[0], Registrations()[1]
	within(t, "registering 1 GiB of CPU memory, seconds", cpu.Time(gib), 0.262, 0.001)
	within(t, "R of 1 MiB I/Os at 100 Gb/s, registered for each", cpu.Efficiency(mib, 1, hundred), 0.23, 0.005)

	// "0.86 after 4 I/Os with persistent registration" does not follow for the CPU memory that gives the two above...
	within(t, "R after 4 I/Os, CPU memory", cpu.Efficiency(mib, 4, hundred), 0.54, 0.01)
	if n := cpu.BreakEven(mib, hundred, 0.86); n != 21 {
		t.Errorf("CPU memory reaches R = 0.86 after %d I/Os, and should after 21", n)
	}
	// ...but for GPU memory, at a cost of a page that was chosen for it.
	within(t, "R after 4 I/Os, GPU memory", gpu.Efficiency(mib, 4, hundred), 0.86, 0.002)
	if n := gpu.BreakEven(mib, hundred, 0.859); n != 4 {
		t.Errorf("GPU memory reaches R = 0.859 after %d I/Os, and should after 4", n)
	}
}

// What an H200 host's driver needed: 24 ms for a gigabyte of page cache.
func TestMeasuredRegistration(t *testing.T) {
	within(t, "registering 1 GB of page cache, seconds", Registrations()[2].Time(1e9), 0.024, 0.01)
}

func TestEfficiencyGrowsWithIOsAndShrinksWithTheLink(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for range 2000 {
		r := Registrations()[random.IntN(3)]
		bytes, n, link := 1+random.Int64N(gib), 1+random.Float64()*1000, 0.1+random.Float64()*100
		e := r.Efficiency(bytes, n, link)
		if e <= 0 || e >= 1 || r.Efficiency(bytes, n+1, link) <= e || r.Efficiency(bytes, n, link*1.1) >= e {
			t.Fatalf("%s: R of %d bytes, %g I/Os, %g GB/s is %g, and does not order as it should", r.Name, bytes, n, link, e)
		}
		if r.Time(bytes+r.Page) <= r.Time(bytes) {
			t.Fatalf("%s: one page more costs nothing", r.Name)
		}
		wanted := 0.05 + 0.9*random.Float64()
		even := r.BreakEven(bytes, link, wanted)
		if r.Efficiency(bytes, float64(even), link) < wanted*(1-1e-9) {
			t.Fatalf("%s: after the break-even of %d I/Os, R is below %g", r.Name, even, wanted)
		}
		if even > 1 && r.Efficiency(bytes, float64(even-1), link) >= wanted*(1+1e-9) {
			t.Fatalf("%s: the break-even of %d I/Os is not the least", r.Name, even)
		}
	}
}

func TestIORate(t *testing.T) {
	// Little's law: 8 I/Os of 1 MB with a latency of 1 ms can be 8 GB/s at most, less what the bytes themselves take.
	within(t, "8 under way", IORate(100, 1e-3, 1e6, 8, 0), 8/1.01, 1e-9)
	within(t, "large I/Os reach the rate", IORate(50, 1e-5, 1<<30, 8, 0), 50, 1e-9)
	// A fence after each I/O of 1 MB at 10 GB/s and 0.1 ms: the copy, its latency, and the fence's.
	within(t, "a fence each I/O", IORate(10, 1e-4, 1e6, 1, 1e6), 1e-3/(2e-4+1e-4), 1e-9)
	random := rand.New(rand.NewPCG(9, 10))
	for range 2000 {
		rate, latency, size := 0.1+random.Float64()*100, random.Float64()*1e-3, 512+random.Int64N(64*mib)
		depth := 1 + random.IntN(64)
		open := IORate(rate, latency, size, depth, 0)
		switch {
		case open > rate:
			t.Fatalf("%g GB/s through a stage of %g", open, rate)
		case IORate(rate, latency, size, depth+1, 0) < open, IORate(rate, latency, size*2, depth, 0) < open*(1-1e-12):
			t.Fatal("more under way, or larger I/Os, are slower")
		case IORate(rate, latency, size, depth, 64*mib) > open*(1+1e-12):
			t.Fatal("a fence made it faster")
		}
	}
}
