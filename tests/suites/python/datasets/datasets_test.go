package datasets_test

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/python/themes"
)

func TestPythonDatasets(t *testing.T) { themes.Run(t, "datasets") }
