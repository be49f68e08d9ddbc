package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// toolexecVerb makes this program run the tools of a build: `go test -toolexec` runs it.
const toolexecVerb = "toolexec"

// toolexecMain runs a tool: arguments are the directory of linked programs, the tool, and the tool's own. go test links every package's tests
// anew, also where nothing has changed, which takes one to three seconds each under the race detector. So the last linked test is kept for each
// package, under the ID that go gives to all that goes into it.
func toolexecMain(args []string) int {
	if len(args) < 2 {
		fmt.Fprintln(os.Stderr, "testreport: toolexec is for go test -toolexec")
		return 2
	}
	dir, tool, args := args[0], args[1], args[2:]
	if strings.TrimSuffix(filepath.Base(tool), ".exe") != "link" {
		return execTool(tool, args)
	}
	pkg, id, out := os.Getenv("TOOLEXEC_IMPORTPATH"), "", ""
	for i, arg := range args {
		if text, ok := strings.CutPrefix(arg, "-buildid="); ok {
			id, _, _ = strings.Cut(text, "/")
		} else if arg == "-o" && i+1 < len(args) {
			out = args[i+1]
		}
	}
	if pkg == "" || id == "" || out == "" { // it tells its version, or go has changed
		return execTool(tool, args)
	}
	base := filepath.Join(dir, strings.ReplaceAll(pkg, "/", "_")+"@")
	if copyFile(base+id, out) == nil {
		return 0
	}
	cmd := exec.Command(tool, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode()
		}
		fmt.Fprintln(os.Stderr, "testreport:", err)
		return 1
	}
	if err := keep(base, id, out); err != nil {
		fmt.Fprintln(os.Stderr, "testreport: keep what was linked:", err)
	}
	return 0
}

// execTool becomes a tool.
func execTool(tool string, args []string) int {
	err := syscall.Exec(tool, append([]string{tool}, args...), os.Environ())
	fmt.Fprintf(os.Stderr, "testreport: run %s: %v\n", tool, err)
	return 1
}

// keep keeps the linked test of a package, in the place of an older one.
func keep(base, id, linked string) error {
	before, err := filepath.Glob(base + "*")
	if err != nil {
		return err
	}
	for _, name := range before {
		err = errors.Join(err, os.Remove(name))
	}
	err = errors.Join(err, os.MkdirAll(filepath.Dir(base), 0o755))
	part := fmt.Sprintf("%s%d.part", base, os.Getpid())
	if err == nil {
		err = copyFile(linked, part)
	}
	if err == nil {
		err = os.Rename(part, base+id)
	}
	return err
}

// copyFile copies a file. go writes into the linked file, so that a link to it would not do.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was only read
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
