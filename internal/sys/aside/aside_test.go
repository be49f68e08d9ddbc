package aside

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// script makes a program that stands for hbmfs.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hbmfs")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOutput(t *testing.T) {
	out, err := Output(t.Context(), time.Minute, "sh", "-c", "echo said; echo beside >&2")
	if err != nil || string(out) != "said\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := Output(t.Context(), time.Minute, "sh", "-c", "echo 'hbmfs: it is gone' >&2; echo more >&2; exit 3"); err == nil || err.Error() != "it is gone" {
		t.Errorf("%v, want what the command says", err)
	}
	if _, err := Output(t.Context(), time.Minute, "false"); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("%v, want its exit code", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stuck := filepath.Join(t.TempDir(), "stuck")
	if err := syscall.Mkfifo(stuck, 0o600); err != nil {
		t.Fatal(err)
	}
	reads := make(chan *os.File)
	go func() {
		f, err := os.OpenFile(stuck, os.O_WRONLY, 0) // waits for the reader
		if err != nil {
			t.Error(err)
		}
		cancel()
		reads <- f
	}()
	// The shell's child keeps the shell's output open until the end of this test, as a process does that is stuck in the kernel.
	if _, err := Output(ctx, time.Minute, "sh", "-c", `cat "$0" & wait`, stuck); !errors.Is(err, ErrSilent) {
		t.Errorf("%v, want that it is silent", err)
	}
	if err := (<-reads).Close(); err != nil {
		t.Error(err)
	}
}

// TestAskerLeavesAStuckMountAlone asks a mount that does not answer: it is told of in time, asked once, and well again when it
// answers.
func TestAskerLeavesAStuckMountAlone(t *testing.T) {
	dir := t.TempDir()
	program := script(t, `echo "$3" >>`+dir+`/asked
echo
case $3 in stuck) while [ ! -e `+dir+`/released ]; do sleep 0.05; done;; esac
echo '{"state": "ok", "text": "eWVz"}'
`)
	k := Asker{Program: program, Patience: 300 * time.Millisecond, Life: t.Context()}
	for range 3 {
		if a := k.Ask(t.Context(), "mount", "stuck"); a.State != Silent || a.Err() == nil {
			t.Errorf("%+v, want that it is silent", a)
		}
	}
	asked := func() []byte {
		text, _ := os.ReadFile(filepath.Join(dir, "asked")) // the program may not have come to it
		return text
	}
	for deadline := time.Now().Add(time.Minute); len(asked()) == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if k.Late("mount") < k.Patience || k.Late("other") != 0 {
		t.Errorf("late for %v, the other for %v", k.Late("mount"), k.Late("other"))
	}
	if a := k.Ask(t.Context(), "other", "well"); a.State == OK && string(a.Text) != "yes" {
		t.Errorf("the other mount: %+v", a)
	}
	if text := string(asked()); strings.Count(text, "stuck") != 1 {
		t.Errorf("asked %q, want one question to the stuck mount", text)
	}
	if err := os.WriteFile(filepath.Join(dir, "released"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if a := k.Ask(t.Context(), "mount", "stuck"); a.State == OK && string(a.Text) == "yes" && a.Err() == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is not asked again although it has answered")
		}
	}
	if k.Late("mount") != 0 {
		t.Error("it is late although it has answered")
	}
}

// TestTimeCountsFromTheQuestion has processes that start late: the mount is as it says then, and is silent only if it leaves the question itself
// unanswered.
func TestTimeCountsFromTheQuestion(t *testing.T) {
	dir := t.TempDir()
	program := script(t, `while [ ! -e `+dir+`/free ]; do sleep 0.02; done
case $3 in stuck) echo; while [ ! -e `+dir+`/released ]; do sleep 0.02; done;; esac
printf '\n{"state": "dead"}\n'
`)
	const patience = time.Second
	k := Asker{Program: program, Patience: patience, Life: t.Context()}
	answers, stuck, outputs := make(chan Answer, 2), make(chan Answer, 1), make(chan error, 1)
	for range 2 {
		go func() { answers <- k.Ask(t.Context(), "mount", "x") }()
	}
	go func() { stuck <- k.Ask(t.Context(), "other", "stuck") }()
	go func() {
		_, err := Output(t.Context(), patience, program, FileCommand, "--", "x")
		outputs <- err
	}()
	select {
	case a := <-answers:
		t.Errorf("%+v, before anybody was asked", a)
	case a := <-stuck:
		t.Errorf("%+v, before anybody was asked", a)
	case err := <-outputs:
		t.Errorf("%v, before anybody was asked", err)
	case <-time.After(patience + Grace + 100*time.Millisecond): // when processes that are late are given up
	}
	if d := k.Late("mount"); d != 0 {
		t.Errorf("late for %v, and nobody was asked", d)
	}
	if err := os.WriteFile(filepath.Join(dir, "free"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if a := <-stuck; a.State != Silent {
		t.Errorf("%+v, want that it is silent", a)
	}
	if err := os.WriteFile(filepath.Join(dir, "released"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if a := <-answers; a.State != Dead {
			t.Errorf("%+v, want that it is dead", a)
		}
	}
	if err := <-outputs; err != nil {
		t.Error(err)
	}
}

// TestAskerTakesTurns asks one mount from many goroutines: all are answered, one after the other.
func TestAskerTakesTurns(t *testing.T) {
	dir := t.TempDir()
	program := script(t, `mkdir `+dir+`/inside || echo two at once >`+dir+`/wrong
rmdir `+dir+`/inside
echo '{"state": "ok", "text": "eWVz"}'
`)
	k := Asker{Program: program, Patience: time.Minute}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if a := k.Ask(t.Context(), "mount", "status"); a.State != OK {
				t.Errorf("%+v", a)
			}
		})
	}
	all.Wait()
	if _, err := os.Stat(filepath.Join(dir, "wrong")); err == nil {
		t.Error("two questions were put at once")
	}
}

// TestAskersShareAnAnswer has callers ask at once whose questions, one after the other, would take longer than any may: two questions serve all,
// since none takes an answer that was under way before it asked. Another file of the mount is another question.
func TestAskersShareAnAnswer(t *testing.T) {
	dir := t.TempDir()
	program := script(t, `echo "$3" >>`+dir+`/asked
while [ ! -e `+dir+`/released ]; do sleep 0.02; done
echo '{"state": "ok", "text": "eWVz"}'
`)
	asked := func() []string {
		text, _ := os.ReadFile(filepath.Join(dir, "asked")) // nobody has asked yet
		return strings.Fields(string(text))
	}
	k := Asker{Program: program, Patience: time.Minute}
	var all sync.WaitGroup
	ask := func(name string) {
		all.Go(func() {
			if a := k.Ask(t.Context(), "mount", name); a.State != OK || string(a.Text) != "yes" {
				t.Errorf("%+v", a)
			}
		})
	}
	ask("status")
	for deadline := time.Now().Add(time.Minute); len(asked()) == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	for range 20 {
		ask("status")
	}
	ask("metrics")
	for deadline := time.Now().Add(time.Minute); waiting() < 21 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if err := os.WriteFile(filepath.Join(dir, "released"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if got := asked(); len(got) < 3 || len(got) > 11 || !slices.Contains(got, "metrics") { // three, but for callers that the machine lets wait
		t.Errorf("asked %q, want the status twice, and the metrics once", got)
	}
}

// waiting is how many calls wait for a question.
func waiting() int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*Asker).Ask(") - 1
}

func TestReadFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "status")
	if err := os.WriteFile(name, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if a := read(name); a.State != OK || string(a.Text) != "text" {
		t.Errorf("%+v", a)
	}
	if a := read(filepath.Dir(name)); a.State != OK || len(a.Text) > 0 {
		t.Errorf("a directory: %+v", a)
	}
	if a := read(name + "x"); a.State != Unreadable || a.Err() == nil {
		t.Errorf("what is not there: %+v", a)
	}
}
