package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// childEnv has TestChild do what the tests of a package may do.
const childEnv = "HBMFS_TESTREPORT_CHILD"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == superviseVerb { // run has this program supervise the tests of modules that it makes
		os.Exit(superviseMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == toolexecVerb { // and link them
		os.Exit(toolexecMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// TestChild is what the supervisors of these tests run. Otherwise it does nothing.
func TestChild(t *testing.T) {
	verb, file, _ := strings.Cut(os.Getenv(childEnv), " ")
	switch verb {
	case "hang":
		leave(t, file)
		select {}
	case "stop":
		leave(t, file)
		signal.Ignore(syscall.SIGQUIT, syscall.SIGTERM)
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		select {} // the signal may stop this thread later than others
	case "leave":
		leave(t, file)
	case "fail":
		t.Error("as it should")
	case "cleanup":
		t.Cleanup(func() {
			if err := os.WriteFile(file, []byte("unmounted"), 0o600); err != nil {
				t.Error(err)
			}
		})
		if err := os.WriteFile(file, []byte("mounted"), 0o600); err != nil {
			t.Fatal(err)
		}
		for !blackbox.Within(time.Minute, func() bool { text, err := os.ReadFile(file + ".end"); return err == nil && len(text) > 0 }) {
			t.Fatal("nothing ends it")
		}
	}
}

// leave leaves a process in a session of its own that has the output open, and writes its number.
func leave(t *testing.T, file string) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// superviseChild supervises a run of TestChild, and gives what it printed.
func superviseChild(t *testing.T, child string, limit time.Duration, signals <-chan os.Signal, p patience) (status int, said string) {
	t.Helper()
	t.Setenv(childEnv, child)
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	status = supervise(out, []string{os.Args[0], "-test.timeout=9h", "-test.run=^TestChild$"}, limit, signals, p)
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return status, string(text)
}

func TestSupervise(t *testing.T) {
	patient := patience{stacks: time.Minute, quit: time.Minute, interrupt: time.Minute, output: time.Minute}
	hasty := patience{stacks: time.Millisecond, quit: time.Millisecond, interrupt: time.Millisecond, output: time.Millisecond}
	quick := patient
	quick.output = 3 * time.Second // in which the output that was written before the end is read
	for _, c := range []struct {
		name, child string
		limit       time.Duration
		patience    patience
		leaves      bool
		want        []string
	}{
		{"a test that hangs is named by Go", "hang", time.Second, quick, true, []string{hungMark, "\tTestChild (", "testreport.TestChild(", unusual + "exit status 2"}},
		{"a stopped test is killed", "stop", time.Second, hasty, true, []string{overtime, "SIGKILL", unusual + "signal: killed"}},
		{"a process that has the output ends", "leave", time.Hour, quick, true, []string{"PASS", "sleep 1000", "kept their output open"}},
		{"a failure is only that", "fail", time.Hour, patient, false, []string{"as it should", "--- FAIL: TestChild"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			status, said := superviseChild(t, c.child+" "+file, c.limit, nil, c.patience)
			for _, want := range c.want {
				if !strings.Contains(said, want) {
					t.Errorf("the output lacks %q:\n%s", want, said)
				}
			}
			if status != 1 || !c.leaves && strings.Contains(said, unusual) {
				t.Errorf("status %d, want 1:\n%s", status, said)
			}
			if !c.leaves {
				return
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if pid, err := strconv.Atoi(string(text)); err != nil || !blackbox.Within(time.Minute, func() bool { return blackbox.Ended(pid) }) {
				t.Errorf("process %s goes on: %v", text, err)
			}
		})
	}
}

// An interrupt lets the tests end, and unmount.
func TestInterruptWaits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mount")
	signals := make(chan os.Signal, 1)
	go func() {
		if !blackbox.Within(time.Minute, func() bool { _, err := os.Stat(file); return err == nil }) {
			t.Error("the test does not begin")
		}
		signals <- os.Interrupt
		if !blackbox.Within(time.Minute, func() bool { return len(signals) == 0 }) {
			t.Error("nothing takes the signal")
		}
		if err := os.WriteFile(file+".end", []byte("now"), 0o600); err != nil {
			t.Error(err)
		}
	}()
	long := patience{stacks: time.Hour, quit: time.Hour, interrupt: time.Hour, output: time.Hour}
	status, said := superviseChild(t, "cleanup "+file, time.Hour, signals, long)
	text, err := os.ReadFile(file)
	if err != nil || string(text) != "unmounted" || status != 0 || !strings.Contains(said, "interrupted") {
		t.Errorf("status %d, the test's mount is %q: %v\n%s", status, text, err, said)
	}
}

// A second interrupt ends them at once.
func TestInterruptTwice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mount")
	signals := make(chan os.Signal, 2)
	signals <- os.Interrupt
	signals <- os.Interrupt
	long := patience{stacks: time.Hour, quit: time.Hour, interrupt: time.Hour, output: time.Millisecond}
	if status, said := superviseChild(t, "hang "+file, time.Hour, signals, long); status != 1 || !strings.Contains(said, unusual+"signal: killed") {
		t.Errorf("status %d:\n%s", status, said)
	}
}

func TestTimeFor(t *testing.T) {
	root := t.TempDir()
	table, dir := filepath.Join(root, "limits.txt"), filepath.Join(root, "tests", "suites", "mount")
	if err := (limits{"tests/suites/mount": 100 * time.Second, "layout": 3 * time.Second}).write(table); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(table)
	if err != nil || !strings.HasSuffix(string(text), "\n\ntests/suites/mount 100\n") {
		t.Errorf("the table is %q: %v", text, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	at := func(end time.Time) string { return strconv.FormatInt(end.UnixMilli(), 10) }
	for _, c := range []struct {
		dir  string
		end  time.Time
		want time.Duration
	}{
		{dir, time.Now().Add(time.Hour), 320 * time.Second},
		{root, time.Now().Add(time.Hour), 20 * time.Second},
	} {
		t.Chdir(c.dir)
		if got, err := timeFor(table, "20s", root, at(c.end)); err != nil || got != c.want {
			t.Errorf("%s has %v, %v; want %v", c.dir, got, err, c.want)
		}
	}
	if got, err := timeFor(table, "1h", root, at(time.Now().Add(time.Minute))); err != nil || got > time.Minute {
		t.Errorf("a minute before the end of the run, tests have %v, %v", got, err)
	}
	if got, err := timeFor(table, "1h", root, at(time.Now())); err == nil {
		t.Errorf("after the end of the run, tests have %v", got)
	}
}

func TestLongestPackagesComeFirst(t *testing.T) {
	l := limits{"layout": 50 * time.Second, "tests/suites/mount": 100 * time.Second}
	for _, c := range [][2][]string{
		{{"-race", "./..."}, {"-race", "./tests/suites/mount", "./layout", "./..."}},
		{{"-race", "./layout", "./cufile"}, {"-race", "./layout", "./cufile"}},
	} {
		if got := l.order(c[0]); !slices.Equal(got, c[1]) {
			t.Errorf("%q becomes %q, want %q", c[0], got, c[1])
		}
	}
}

func TestParseLimitsRefuses(t *testing.T) {
	for _, text := range []string{"fs", "fs 1 2", "fs many", "fs -1"} {
		if l, err := parseLimits(text); err == nil {
			t.Errorf("parseLimits(%q) = %v, want an error", text, l)
		}
	}
}

func TestShippedLimitsParse(t *testing.T) {
	l, err := readLimits("../../limits.txt")
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range l {
		if _, err := os.Stat(filepath.Join("../../..", pkg)); err != nil {
			t.Error(err)
		}
	}
}

// madeModule makes a module whose package in each folder has this body of a test.
func madeModule(t *testing.T, tests map[string]string) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"go.mod": "module m\n\ngo 1.26\n"}
	for name, body := range tests {
		files[name+"/x_test.go"] = fmt.Sprintf("package %s\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Args\n\nfunc Test(t *testing.T) {\n%s\n}\n", name, body)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("CGO_ENABLED", "0") // as make test builds programs, so that the packages of Go are there
}

const failsOnce = `t.Run("sub test", func(t *testing.T) {
	if os.Getenv("HBMFS_SEED") != "7" { t.Fatal("no seed") }
	if os.Mkdir("once", 0o700) == nil { t.Error("took 6 s, want 5") }
})`

func TestRun(t *testing.T) {
	t.Setenv(seedEnv, "7")
	for _, c := range []struct {
		name  string
		args  []string
		tests map[string]string
		want  []string
		fails bool
	}{
		{"flaky", nil, map[string]string{"flaky": failsOnce, "good": ""}, []string{"HBMFS_SEED=7\n", "took 6 s, want 5", "\n1 flaky\n2 passed, 0 failed, 0 skipped\n"}, false},
		{
			"too many are flaky", nil,
			map[string]string{"many": `for _, name := range []string{"a", "b", "c", "d"} { t.Run(name, func(t *testing.T) {
	if os.Mkdir(name, 0o700) == nil { t.Error("took 6 s, want 5") }
}) }`},
			[]string{"\n4 flaky\n4 passed, 0 failed, 0 skipped\n"}, true,
		},
		{
			"a flaky one hides no failure", nil,
			map[string]string{"flaky": failsOnce, "real": `t.Error("got 1, want 2")`},
			[]string{"failed alone, too: m/real Test", "\n1 flaky\n1 passed, 1 failed, 0 skipped\n"}, true,
		},
		{
			"hung", []string{"--spare=1s"}, map[string]string{"hung": "select {}"},
			[]string{"hung Test: it still ran", "m/hung.Test(", "does not run again: m/hung Test: a timeout", "\n0 passed, 1 failed, 0 skipped\n"}, true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			madeModule(t, c.tests)
			out := &strings.Builder{}
			err := run(append(c.args, "-trimpath", "-buildvcs=false", "./..."), out, nil)
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the report lacks %q", want)
				}
			}
			if (err != nil) != c.fails || t.Failed() {
				t.Errorf("error %v, and the report\n%s", err, out)
			}
		})
	}
}
