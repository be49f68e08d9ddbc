package plan

import (
	"math"
	"strings"
	"testing"
)

func bench(t *testing.T, text string) *Bench {
	t.Helper()
	b, err := ParseBench(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A result as hbmfs bench prints it, with fields that we do not use, and one that nobody knows.
const oneGPU = `{"file":"/data/x","size":8589934592,"gpus":[{"index":0,"name":"NVIDIA H200","pci":"0000:01:00.0","numa":0}],
"cpus":16,"block":67108864,"threads":8,"depth":8,"wall_gb_per_s":50,"new_field":{"a":[1,2]},
"rows":[{"path":"plain","mode":"sequential","bytes":1,"seconds":1,"gb_per_s":3,"of_wall":0.06,"cpu_s_per_gb":0.3},
{"path":"staged","mode":"sequential","gb_per_s":47,"per_gpu":[47]},
{"path":"staged","mode":"gather","gb_per_s":20},
{"path":"mapped kept","mode":"sequential","gb_per_s":49},
{"path":"mapped moving","mode":"sequential","gb_per_s":30},
{"path":"direct","mode":"-","skip":"no nvidia-fs"}]}`

func TestCalibrateTakesWhatWasMeasured(t *testing.T) {
	c, err := Calibrate([]*Bench{bench(t, oneGPU)})
	if err != nil {
		t.Fatal(err)
	}
	within(t, "wall", c.Wall.Mid, 50, 1e-9)
	within(t, "mapped", c.Mapped, 0.98, 1e-9)
	within(t, "plain", c.Plain.Mid, 3, 1e-9)
	within(t, "staged, bound by the link", c.Staged, 0.94, 1e-9)
	// The moving windows bound the registering: at least as fast as the whole, at most what is left without the copy.
	within(t, "registering, slowest", c.Register.Low, 30, 1e-9)
	within(t, "registering, fastest", c.Register.High, 1/(1/30.-1/49.), 1e-9)
	if c.Register.Mid < c.Register.Low || c.Register.Mid > c.Register.High {
		t.Errorf("registering is %v, out of order", c.Register)
	}
	// Staged was bound by the link: it says nothing about the CPUs, which stay as they were.
	within(t, "one thread", c.CPUs.PerThread, Measured().CPUs.PerThread, 1e-9)
	if !c.measured || c.Source == Measured().Source {
		t.Error("a calibration does not say that it is one")
	}
}

func TestLinksComeFromTheRunsWithFewestGPUs(t *testing.T) {
	eight := strings.Replace(oneGPU, `"gpus":[`, `"gpus":[{},{},{},`, 1) // four, that share links
	c, err := Calibrate([]*Bench{bench(t, eight), bench(t, oneGPU)})
	if err != nil {
		t.Fatal(err)
	}
	within(t, "wall", c.Wall.Mid, 50, 1e-9)
}

// Without --threads, several readers share what threads the host has: how many each took, the result does not say.
func TestUnknownThreadsSayNothingAboutTheCPUs(t *testing.T) {
	for text, points := range map[string]int{
		`{"gpus":[{}],"cpus":16,"threads":0,"wall_gb_per_s":50,"rows":[{"path":"staged","mode":"sequential","gb_per_s":30}]}`:     1,
		`{"gpus":[{},{}],"cpus":16,"threads":0,"wall_gb_per_s":100,"rows":[{"path":"staged","mode":"sequential","gb_per_s":60}]}`: 3,
	} {
		c, err := Calibrate([]*Bench{bench(t, text)})
		if err != nil || len(c.CPUs.Points) != points {
			t.Errorf("%s: fitted to %v, %v", text, c.CPUs.Points, err)
		}
	}
}

func TestCalibrateRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":       ``,
		"no JSON":       `PATH MODE GB/s`,
		"another JSON":  `[]`,
		"no GPU":        `{"gpus":[],"threads":8,"wall_gb_per_s":50}`,
		"no wall":       `{"gpus":[{}],"threads":8}`,
		"many threads":  `{"gpus":[{}],"threads":100000,"wall_gb_per_s":50}`,
		"negative rate": `{"gpus":[{}],"threads":8,"wall_gb_per_s":50,"rows":[{"path":"staged","mode":"sequential","gb_per_s":-1}]}`,
		"no rate":       `{"gpus":[{}],"threads":8,"wall_gb_per_s":50,"rows":[{"path":"staged","mode":"sequential"}]}`,
	} {
		if _, err := ParseBench(strings.NewReader(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := Calibrate(nil); err == nil {
		t.Error("calibrated by nothing")
	}
}

func TestFitFindsTheLawItIsGiven(t *testing.T) {
	law := CPUs{PerThread: 6, Coherence: 0.002}
	var points []Point
	for _, threads := range []int{2, 4, 8, 16} {
		points = append(points, Point{1, threads, law.at(threads)})
	}
	c := fit(points)
	within(t, "per thread", c.PerThread, 6, 1e-6)
	within(t, "coherence", c.Coherence, 0.002, 1e-6)
}

// Runs that scale perfectly must not promise any rate to enough threads, and one run must be met.
func TestFitOfTooFewPoints(t *testing.T) {
	for name, points := range map[string][]Point{
		"one run":         {{1, 8, 40}},
		"the same twice":  {{1, 8, 40}, {1, 8, 40}},
		"perfect scaling": {{1, 2, 10}, {1, 4, 20}, {1, 8, 40}},
		"better than it":  {{1, 2, 9}, {1, 8, 40}},
	} {
		c := fit(points)
		within(t, name+": 8 threads", c.at(8), 40, 1e-9)
		if c.at(1000) > c.at(20) {
			t.Errorf("%s: 1000 threads reach %g, more than 20 with %g", name, c.at(1000), c.at(20))
		}
	}
}

func TestRangesOfTheCPUsHoldTheFit(t *testing.T) {
	c := Measured().CPUs
	last := 0.0
	for threads := 1; threads <= 128; threads *= 2 {
		r := c.Rate(threads)
		if !(r.Low > 0 && r.Low <= r.Mid && r.Mid <= r.High) {
			t.Errorf("%d threads: %v is out of order", threads, r)
		}
		if wide := (r.High - r.Low) / r.Mid; threads >= 32 && wide < last {
			t.Errorf("%d threads: the range is narrower than nearer to what was measured", threads)
		} else {
			last = wide
		}
	}
}

func FuzzParseBench(f *testing.F) {
	f.Add(oneGPU)
	f.Add(`{"gpus":[{}],"threads":1,"wall_gb_per_s":0.01,"rows":[{"path":"staged","mode":"sequential","gb_per_s":1e-6},{"path":"mapped kept","mode":"sequential","gb_per_s":1e5},{"path":"mapped moving","mode":"sequential","gb_per_s":1e-6}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		b, err := ParseBench(strings.NewReader(text))
		if err != nil {
			return
		}
		c, err := Calibrate([]*Bench{b})
		if err != nil {
			t.Fatalf("parsed, but did not calibrate: %v", err)
		}
		for _, r := range []Range{c.Wall, c.Plain, c.Register, c.CPUs.Rate(64)} {
			if !(r.Low > 0 && r.Low <= r.Mid*(1+1e-9) && r.Mid <= r.High*(1+1e-9)) || math.IsInf(r.High, 0) {
				t.Fatalf("a range of %+v", r)
			}
		}
	})
}
